"""Opening a link: one attempt, one deadline per step, and an error that names the address and what to do."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl as tls
from collections.abc import Callable

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.uri import WebSocketURI

from engine.errors import LinkError, SkippyError, Unauthorized
from engine.protocol.connection import Connection
from engine.protocol.limits import FIRST_FRAME_BYTES
from engine.protocol.messages import Hello, LinkEmulation, Message
from engine.protocol.sessions import ReplyOrder
from engine.transport.addresses import Address, check_token, parse_url
from engine.transport.link import BusyInfo, Link, idle
from engine.transport.timeouts import TIMEOUTS, Timeouts
from engine.transport.websocket import CORE_LOGGER, WebSocket

_emulated_links = itertools.count()
"""Salts the jitter: no two links of a process share a stream, and the n-th link of every run has the same."""


async def open_link(
    url: str,
    hello: Hello,
    *,
    token: str = "",
    on_message: Callable[[Message], None] | None = None,
    on_close: Callable[[Link], None] | None = None,
    busy: BusyInfo = idle,
    order: ReplyOrder | None = None,
    emulation: LinkEmulation | None = None,
    loading: bool = False,
    ssl: tls.SSLContext | None = None,
    timeouts: Timeouts = TIMEOUTS,
) -> Link:
    """An open link to the stage at `url`, whose answer is `link.welcome`.

    `order` checks that replies are the ones that are due (the coordinator gives one to a lane and its return
    link). `loading` grants the stages time to load before they answer. `emulation` (default: the one in
    `hello`) delays both directions. `ssl` is for `wss://` only; default: the system's certificates.

    UsageError for a bad URL; Unauthorized for a wrong token; HandshakeRefused if the stage does not fit;
    LinkError for everything else that can happen to a connection.
    """
    address = parse_url(url)
    check_token(token)
    websocket = await _connect(address, token, ssl, timeouts)
    link = Link(websocket, Connection.opener(hello, order), str(address), timeouts)
    link.on_message, link.busy = on_message, busy
    wanted = hello.emulation if emulation is None else emulation
    if wanted.active:
        link.emulate(wanted, f"{hello.role}/{hello.stage_index}/{next(_emulated_links)}")
    patience = timeouts.welcome_loading if loading else timeouts.welcome
    try:
        async with asyncio.timeout(patience):
            link.greet()
            await link.greeting()
    except TimeoutError:
        websocket.abort()
        raise LinkError(
            f"the stage at {address} did not answer within {patience:g} s",
            hint="it may still be loading or be stuck: look at its log",
        ) from None
    except BaseException:
        websocket.abort()
        raise
    link.on_close = on_close
    return link


async def _connect(
    address: Address, token: str, context: tls.SSLContext | None, timeouts: Timeouts
) -> WebSocket:
    """TCP, TLS and the upgrade."""
    uri = WebSocketURI(address.secure, address.host, address.port, "/", "", None, None)
    core = ClientProtocol(uri, max_size=FIRST_FRAME_BYTES, logger=CORE_LOGGER)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    websocket = WebSocket(core, close_timeout=timeouts.close, headers=headers)
    secure = (context or tls.create_default_context()) if address.secure else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeouts.connect):
            await loop.create_connection(
                lambda: websocket, address.host, address.port, ssl=secure, happy_eyeballs_delay=0.25
            )
            await asyncio.shield(websocket.upgraded)
    except TimeoutError:
        websocket.abort()
        raise LinkError(
            f"no answer from {address} within {timeouts.connect:g} s",
            hint="check the address, the firewall and that the stage runs",
        ) from None
    except asyncio.CancelledError:
        websocket.abort()
        raise
    except Exception as error:
        websocket.abort()
        raise _explain(address, error, bool(token)) from error
    return websocket


def _explain(address: Address, error: Exception, has_token: bool) -> SkippyError:
    """What went wrong, in words."""
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        if status == 401:
            complaint = "refused the token" if has_token else "asks for a token"
            return Unauthorized(
                f"the stage at {address} {complaint}",
                hint="give the token it was started with: --token-file FILE",
            )
        if status == 503:
            return LinkError(f"{address} has no free place for a link", hint="close another one first")
        return LinkError(
            f"{address} answered with HTTP status {status}", hint="check that it is a stage of ours"
        )
    if isinstance(error, tls.SSLError):
        return LinkError(
            f"no TLS connection to {address}: {error.reason or error}",
            hint="check the certificate, and wss:// against ws://",
        )
    if isinstance(error, ConnectionRefusedError):
        return LinkError(f"nothing listens at {address}", hint="start the stage there or correct the address")
    if isinstance(error, socket.gaierror):
        return LinkError(f"the host name of {address} is unknown", hint="correct the address")
    if isinstance(error, OSError) and error.strerror:
        return LinkError(f"cannot connect to {address}: {error.strerror}", hint="check the network")
    if isinstance(error, OSError) or isinstance(error.__cause__, EOFError):
        return LinkError(
            f"{address} hung up without answering like a stage",
            hint="check wss:// against ws://, and that it is a stage of ours",
        )
    return LinkError(
        f"{address} does not answer like a stage: {error}", hint="check that it is a stage of ours"
    )
