"""Serving links: a listening socket whose every connection is checked, answered and then handed over."""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import socket
import ssl as tls
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from engine.errors import LinkError, ProtocolError, SkippyError, UsageError
from engine.protocol.connection import Connection
from engine.protocol.limits import FIRST_FRAME_BYTES
from engine.protocol.messages import Hello, Welcome
from engine.transport.addresses import Address, check_token, is_loopback
from engine.transport.link import BusyInfo, Link, idle
from engine.transport.timeouts import TIMEOUTS, Timeouts
from engine.transport.websocket import CORE_LOGGER, WebSocket

log = logging.getLogger(__name__)

MAX_LINKS = 64
"""Most connections at a time, half-open ones included."""

OnHello = Callable[[Hello], Awaitable[Welcome]]
OnLink = Callable[[Link], None]


class Server:
    """A listening stage. Made by `serve_links`."""

    def __init__(
        self,
        token: str,
        on_hello: OnHello,
        on_link: OnLink,
        busy: BusyInfo,
        timeouts: Timeouts,
        max_links: int,
    ) -> None:
        self._token = token.encode()
        self._on_hello = on_hello
        self._on_link = on_link
        self._busy = busy
        self._timeouts = timeouts
        self._max_links = max_links
        self._listener: asyncio.Server
        self._links: set[Link] = set()  # half-open ones included
        self._handshakes: set[asyncio.Task[None]] = set()
        self._strangers: set[str] = set()  # hosts whose missing or wrong token has been logged
        self.refused = 0  # connections turned away or ended for a violation, since the start
        self.address: Address

    @property
    def url(self) -> str:
        """Where it listens, for example `ws://127.0.0.1:9555`."""
        return self.address.url

    @property
    def port(self) -> int:
        """The port, also when the system chose it."""
        return self.address.port

    async def close(self, reason: str = "the stage is shutting down") -> None:
        """Listen no more and end all links."""
        self._listener.close()
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*[link.close(reason) for link in self._links])
        if self._handshakes:
            await asyncio.wait(list(self._handshakes))

    async def listen(self, sock: socket.socket, ssl: tls.SSLContext | None) -> None:
        """Begin to serve a socket that already listens."""
        self._listener = await asyncio.get_running_loop().create_server(
            self._accepted,
            sock=sock,
            ssl=ssl,
            ssl_handshake_timeout=self._timeouts.hello if ssl else None,
        )
        bound = sock.getsockname()
        self.address = Address(bound[0], bound[1], ssl is not None)

    def _accepted(self) -> WebSocket:
        """Protocol for a new connection, which does not count before TLS is through."""
        core = ServerProtocol(max_size=FIRST_FRAME_BYTES, logger=CORE_LOGGER)
        websocket = WebSocket(
            core,
            close_timeout=self._timeouts.close,
            answer_upgrade=lambda request: self._answer_upgrade(core, websocket, request),
            on_connected=lambda: self._connected(websocket),
        )
        return websocket

    def _connected(self, websocket: WebSocket) -> None:
        link = Link(websocket, Connection.acceptor(), websocket.peer, self._timeouts)
        link.busy = self._busy
        self._links.add(link)
        websocket.lost.add_done_callback(lambda _: self._disconnected(websocket, link))
        task = asyncio.get_running_loop().create_task(self._shake_hands(websocket, link))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _disconnected(self, websocket: WebSocket, link: Link) -> None:
        self._links.discard(link)
        if isinstance(link.error, ProtocolError):
            self.refused += 1
            log.warning("ended the link of %s: %s", websocket.peer, link.error)

    def _answer_upgrade(self, core: ServerProtocol, websocket: WebSocket, request: Request) -> Response:
        """Who may come in. The comparison takes the same time wherever two tokens differ."""
        given = request.headers.get_all("Authorization")
        expected = b"Bearer " + self._token
        if self._token and not (
            len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "surrogateescape"), expected)
        ):
            self.refused += 1
            if websocket.peer_host not in self._strangers and len(self._strangers) < 1000:
                self._strangers.add(websocket.peer_host)
                log.warning("refused %s: %s token", websocket.peer, "wrong" if given else "no")
            response = core.reject(401, "a token is needed\n")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if len(self._links) > self._max_links:
            self.refused += 1
            log.warning("refused %s: all %d places are taken", websocket.peer, self._max_links)
            return core.reject(503, "no free place for a link\n")
        if request.headers.get_all("Origin"):
            return core.reject(403, "not for web pages\n")  # a page could reach a stage on this machine
        return core.accept(request)

    async def _shake_hands(self, websocket: WebSocket, link: Link) -> None:
        """From the connection to the link; a peer that does not get that far is dropped."""
        try:
            async with asyncio.timeout(self._timeouts.hello):
                hello = await link.greeting()
        except TimeoutError:
            self.refused += 1
            websocket.abort()
            return
        except SkippyError:
            return  # the link has told the peer already
        assert isinstance(hello, Hello)
        try:
            link.accept(await self._answer(websocket, hello))
            self._on_link(link)
        except SkippyError as error:
            link.fail(error)
        except Exception as error:
            log.exception("a client's Hello could not be answered")
            link.fail(SkippyError(f"internal error ({type(error).__name__})", code="internal"))

    async def _answer(self, websocket: WebSocket, hello: Hello) -> Welcome:
        """What `on_hello` says; LinkError if the peer goes away first or it takes too long."""
        answer = asyncio.ensure_future(self._on_hello(hello))
        try:
            first: list[asyncio.Future[Any]] = [answer, websocket.lost]
            await asyncio.wait(first, timeout=self._timeouts.answer, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise LinkError(f"no answer for {websocket.peer} within {self._timeouts.answer:g} s")
        finally:
            answer.cancel()


async def serve_links(
    host: str,
    port: int,
    *,
    on_hello: OnHello,
    on_link: OnLink,
    token: str = "",
    insecure: bool = False,
    busy: BusyInfo = idle,
    ssl: tls.SSLContext | None = None,
    timeouts: Timeouts = TIMEOUTS,
    max_links: int = MAX_LINKS,
) -> Server:
    """Listen on `host:port` (port 0: any free one).

    Each client is asked for the token at the upgrade and then for its Hello; `on_hello` returns the Welcome
    or raises a SkippyError, which the client is told. `on_link` gets every link that came about and must set
    `link.on_message` and `link.on_close` before it returns. `busy` feeds the heartbeats.

    UsageError for an address that others can reach without a token, unless `insecure`; LinkError if the
    address cannot be used.
    """
    check_token(token)
    family, ip = await _resolve(host, port)
    if not is_loopback(ip) and not token and not insecure:
        raise UsageError(
            f"{host} can be reached from other machines and there is no token",
            hint="give --token-file, or --insecure if the network is yours alone",
        )
    server = Server(token, on_hello, on_link, busy, timeouts, max_links)
    await server.listen(bind(family, ip, port), ssl)
    return server


async def _resolve(host: str, port: int) -> tuple[int, str]:
    """Address family and numeric address, IPv4 first."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise LinkError(f"cannot listen on {host}: {error.strerror}", hint="correct the address") from error
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    return family, str(address[0])


def bind(family: int, ip: str, port: int) -> socket.socket:
    """A listening socket. Raises LinkError if the address cannot be used."""
    address = Address(ip, port)
    try:
        return socket.create_server((ip, port), family=family, backlog=MAX_LINKS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LinkError(
                f"port {port} of {ip} is in use", hint="stop the other process or choose another port"
            ) from error
        raise LinkError(
            f"cannot listen on {address}: {error.strerror}", hint="correct the address"
        ) from error
