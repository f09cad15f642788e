"""The WebSocket of a link: an asyncio protocol around the protocol core of `websockets`, which does no I/O.

Its asyncio layer hands every message through a queue to a waiting task; here the message goes from the
socket straight to a callback (about half the latency for a small frame), and sending never waits.
Compression and the built-in keepalive do not exist here: heartbeats are messages of ours that a busy stage
still answers.

Messages may be sent from any thread: a compute thread that had to wake the event loop for it would lose a
tenth of a millisecond and more for every window. One lock guards the core and all that is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from engine.transport.addresses import Address

# The core's log lines carry whole requests, and with them the token: only its warnings may pass.
CORE_LOGGER = logging.getLogger("engine.transport.websocket.core")
CORE_LOGGER.setLevel(logging.WARNING)

NORMAL = 1000
POLICY = 1008

MAX_REASON_BYTES = 123  # of a close frame, by RFC 6455 section 5.5

MAX_FRAGMENTS = 1024  # we never send any, but a proxy on the way may cut messages

READ_BUFFER = 1 << 17  # kept for the life of a connection: a fresh one for every read costs 20 µs

WRITE_HIGH = 1 << 20  # bytes in the write buffer above which the socket counts as full ..
WRITE_LOW = 1 << 18  # .. until it has drained to this


class WebSocket(asyncio.BufferedProtocol):
    """One WebSocket, either side. The callbacks run on the event loop and must not raise. All methods but
    `send` belong to its thread.

    `on_message(data)` gets each binary message, `on_heard()` runs whenever bytes arrive, `on_drain()` when
    the write buffer has emptied, `on_lost()` once at the very end. `upgraded` resolves when messages can
    flow, and fails if the upgrade did.
    """

    def __init__(
        self,
        core: ClientProtocol | ServerProtocol,
        *,
        close_timeout: float,
        answer_upgrade: Callable[[Request], Response] | None = None,
        on_connected: Callable[[], None] = lambda: None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._core = core
        self._close_timeout = close_timeout
        self._answer_upgrade = answer_upgrade
        self._on_connected = on_connected
        self._headers = headers or {}
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._transport: asyncio.Transport | None = None
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None  # the transport's, for other threads; None over TLS
        self._left_over: list[bytes] = []  # what the socket did not take from another thread
        self._read_buffer = memoryview(bytearray(READ_BUFFER))
        self._fragments: list[bytes] = []
        self._abort_timer: asyncio.TimerHandle | None = None
        self.upgraded: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.peer_host = self.peer = "?"
        self.on_message: Callable[[bytes], None] = lambda data: None
        self.on_heard: Callable[[], None] = lambda: None
        self.on_drain: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None

    # --- for the link ---------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True while messages can be sent."""
        return self._core.state is State.OPEN

    @property
    def buffered(self) -> int:
        """Bytes that wait for the socket."""
        if self._transport is None:
            return 0
        try:
            waiting = self._transport.get_write_buffer_size()
        except RuntimeError:  # asyncio adds up a deque, which shrinks at this very moment
            waiting = 1
        return waiting + sum(map(len, self._left_over))

    def set_max_message(self, size: int) -> None:
        """Largest message to accept from now on, in bytes."""
        self._core.max_message_size = size

    def send(self, data: bytes) -> None:
        """Write one binary message, from any thread. Never waits: look at `buffered` first."""
        with self._lock:
            if self._core.state is not State.OPEN:
                return
            self._core.send_binary(data)
            if threading.get_ident() == self._loop_thread:
                self._flush()
            else:
                self._write_directly()

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; the socket is cut if the peer does not join in soon."""
        with self._lock:
            if self._core.state is State.OPEN:
                self._core.send_close(code, _shorten(reason))
                self._flush()
            elif self._core.state is State.CONNECTING:
                self.abort()

    def abort(self) -> None:
        """Cut the socket."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading; the peer's socket fills up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def close_reason(self) -> str:
        """Why the peer closed, or how the connection broke."""
        received: Close | None = self._core.close_rcvd
        if received is not None:
            return received.reason or "closed by the peer"
        if self._core.parser_exc is not None and not isinstance(self._core.parser_exc, EOFError):
            return f"malformed WebSocket data: {self._core.parser_exc}"
        return "connection lost"

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A TCP (or TLS) connection stands: the client asks for the upgrade."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock is not None and transport.get_extra_info("ssl_object") is None:
            self._socket = socket.socket(fileno=os.dup(sock.fileno()))  # does not block, like the original
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer_host = str(peer[0])
            self.peer = str(Address(self.peer_host, peer[1]))
        if isinstance(self._core, ClientProtocol):
            request = self._core.connect()
            request.headers.update(self._headers)
            self._core.send_request(request)
            self._flush()
        self._on_connected()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes from the socket; the core copies them."""
        with self._lock:
            self._core.receive_data(cast(bytes, self._read_buffer[:nbytes]))
            events = self._core.events_received()
        self.on_heard()
        for event in events:
            if isinstance(event, Frame):
                self._frame_received(event)
            elif isinstance(event, Request):
                self._request_received(event)
            elif self._core.state is State.OPEN:
                self._finish_upgrade(None)
        if isinstance(self._core, ClientProtocol) and self._core.handshake_exc is not None:
            self._finish_upgrade(self._core.handshake_exc)
        self._flush()

    def eof_received(self) -> bool | None:
        """The peer sends no more."""
        with self._lock:
            self._core.receive_eof()
            self._flush()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of it, for whatever reason."""
        with self._lock:
            self._core.receive_eof()
            if self._socket is not None:
                self._socket.close()
                self._socket = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._finish_upgrade(self._core.handshake_exc or ConnectionResetError("closed during the upgrade"))
        if not self.lost.done():
            self.lost.set_result(None)
        self.on_lost()

    def pause_writing(self) -> None:
        """The write buffer is above its bound: whoever sends looks at `buffered`."""

    def resume_writing(self) -> None:
        """The write buffer has drained."""
        self.on_drain()

    # --- events of the core ---------------------------------------------------------------------------------

    def _request_received(self, request: Request) -> None:
        assert isinstance(self._core, ServerProtocol)
        assert self._answer_upgrade is not None
        response = self._answer_upgrade(request)
        self._core.send_response(response)
        if self._core.state is State.OPEN:
            self._finish_upgrade(None)

    def _finish_upgrade(self, error: Exception | None) -> None:
        if self.upgraded.done():
            return
        if error is None:
            self.upgraded.set_result(None)
        else:
            self.upgraded.set_exception(error)
            self.upgraded.exception()  # retrieved: nobody may be waiting

    def _frame_received(self, frame: Frame) -> None:
        if not self.upgraded.done() or self.upgraded.exception() is not None:
            return  # sent before its upgrade was accepted
        if frame.opcode is Opcode.BINARY and frame.fin:
            self.on_message(cast(bytes, frame.data))
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._fragments.append(cast(bytes, frame.data))
            if len(self._fragments) > MAX_FRAGMENTS:
                self.close(POLICY, f"a message of more than {MAX_FRAGMENTS} fragments")
            elif frame.fin:
                message = b"".join(self._fragments)
                self._fragments.clear()
                self.on_message(message)
        elif frame.opcode is Opcode.TEXT:
            self.close(POLICY, "only binary messages are understood")

    def _flush(self) -> None:
        assert self._transport is not None
        with self._lock:
            waiting, self._left_over = [*self._left_over, *self._core.data_to_send()], []
            for data in waiting:
                if data:
                    self._transport.write(data)
                elif self._transport.can_write_eof():
                    self._transport.write_eof()
                else:
                    self._transport.close()
        if self._abort_timer is None and self._core.close_expected():
            self._abort_timer = self._loop.call_later(self._close_timeout, self.abort)

    def _write_directly(self) -> None:
        """Write on another thread than the loop's, which gets what the socket does not take at once."""
        data = b"".join(self._core.data_to_send())
        written = 0
        if self._socket is not None and not self.buffered:
            with contextlib.suppress(OSError):  # full, or lost: the loop finds out which
                written = self._socket.send(data)
        if written < len(data):
            self._left_over.append(data[written:])
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the connection with it
                self._loop.call_soon_threadsafe(self._flush)


def _shorten(reason: str) -> str:
    """At most `MAX_REASON_BYTES` of UTF-8, cut between characters."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
