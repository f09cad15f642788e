"""One established link between two processes: messages over a WebSocket, checked by the protocol core.

The hot path is synchronous: bytes from the socket are decoded, checked and handed to `on_message` in one call
on the event loop; `post` encodes and writes in one call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from engine.errors import LinkError, SkippyError
from engine.protocol import codec
from engine.protocol.checksum import CHECKSUM_BYTES, seal, unseal
from engine.protocol.connection import Connection
from engine.protocol.heartbeat import Heartbeat
from engine.protocol.messages import ErrorMessage, Hello, LinkEmulation, Message, Ping, Pong, Welcome
from engine.transport.emulation import DelayLine
from engine.transport.timeouts import Timeouts
from engine.transport.websocket import NORMAL, POLICY, WRITE_HIGH, WRITE_LOW, WebSocket

log = logging.getLogger(__name__)

POST_BOUND = 16 * WRITE_HIGH  # bytes of our own that may wait for the peer before `post` refuses more
INBOX_HIGH = 64  # messages that wait for `async for` before the socket is no longer read ..
INBOX_LOW = 16  # .. until this few are left

BusyInfo = Callable[[], tuple[int, int]]
"""For how many ms the running decode has been running, and how many windows wait behind it."""


def idle() -> tuple[int, int]:
    """`BusyInfo` of a process that does not compute."""
    return 0, 0


class Link:
    """Made by `open_link` and `serve_links`. All methods but `post` belong to the event loop's thread.

    Messages go to `on_message`, or wait for it or for `async for` while it is not set. Heartbeats are
    answered and sent by the link itself. When the link ends for whatever reason, `closed` is set, `error`
    says why (None after an orderly close from here), and `on_close(link)` runs once, even if it is set late.
    """

    def __init__(self, socket: WebSocket, connection: Connection, address: str, timeouts: Timeouts) -> None:
        self._socket = socket
        self._connection = connection
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._sending = threading.Lock()  # frames leave in the order in which the core has checked them
        self._heartbeat = Heartbeat(timeouts.heartbeat, timeouts.silent, time.monotonic())
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._greeting: asyncio.Future[Hello | Welcome] = self._loop.create_future()
        self._lines: tuple[DelayLine, DelayLine] | None = None
        self._outgoing: DelayLine | None = None
        self._incoming: DelayLine | None = None
        self._send_turn = asyncio.Lock()
        self._drained: asyncio.Future[None] | None = None
        self._inbox: deque[Message] = deque()
        self._inbox_waiter: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._closed_here = False
        self.address = address  # of the peer, for people
        self.busy: BusyInfo = idle
        self._on_message: Callable[[Message], None] | None = None
        self._on_close: Callable[[Link], None] | None = None
        self.closed = asyncio.Event()
        self.error: SkippyError | None = None
        self.peer_error: ErrorMessage | None = None  # the last error that the peer named, if any
        socket.on_message = self._bytes_received
        socket.on_heard = self._heard
        socket.on_drain = self._wake_sender
        socket.on_lost = self._lost

    def __repr__(self) -> str:
        """The address and the state."""
        return f"<Link {self.address} {'closed' if self.closed.is_set() else 'open'}>"

    # --- what the link knows --------------------------------------------------------------------------------

    @property
    def hello(self) -> Hello:
        """What the opener said."""
        assert self._connection.hello is not None
        return self._connection.hello

    @property
    def welcome(self) -> Welcome:
        """What the acceptor answered."""
        assert self._connection.welcome is not None
        return self._connection.welcome

    @property
    def rtt_ms(self) -> float | None:
        """Median round trip of the last heartbeats, emulated delay included; None before the first answer."""
        return self._heartbeat.rtt_ms

    @property
    def peer_busy_ms(self) -> int:
        """For how long the peer's running decode had been running at its last heartbeat; 0: idle."""
        return self._heartbeat.peer_busy_ms

    @property
    def peer_queued(self) -> int:
        """How many windows waited at the peer at its last heartbeat."""
        return self._heartbeat.peer_queued

    @property
    def widened_frames(self) -> int:
        """Frames sent as f32 because the agreed wire type could not hold a value of theirs."""
        return self._connection.widened_frames

    @property
    def reason(self) -> str:
        """Why the link ended, in words; empty while it is open."""
        if not self.closed.is_set():
            return ""
        return str(self.error) if self.error is not None else "closed"

    @property
    def is_writable(self) -> bool:
        """True while the peer keeps up and `send` would not wait."""
        return self._buffered() <= WRITE_HIGH

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """What gets each message, on the event loop; it must not block."""
        return self._on_message

    @on_message.setter
    def on_message(self, callback: Callable[[Message], None] | None) -> None:
        self._on_message = callback
        if callback is not None:
            while self._inbox:
                callback(self._inbox.popleft())
            if self._reading_paused:
                self.resume()

    @property
    def on_close(self) -> Callable[[Link], None] | None:
        """What runs once when the link has ended."""
        return self._on_close

    @on_close.setter
    def on_close(self, callback: Callable[[Link], None] | None) -> None:
        self._on_close = callback
        if callback is not None and self.closed.is_set():
            self._loop.call_soon(callback, self)

    # --- sending --------------------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Send without waiting, in the order of the calls, from any thread.

        ProtocolError if the message is not allowed (nothing is sent then); LinkError if the link is closed or
        if the peer has let `POST_BOUND` bytes pile up: whoever may produce that much uses `send`.
        """
        self._check_open()
        if self._buffered() > POST_BOUND:
            raise LinkError(
                f"{self.address} does not keep up: {POST_BOUND} bytes wait for it", code="link-full"
            )
        widened = self._connection.widened_frames
        self._transmit(message)
        if not widened and self._connection.widened_frames:
            log.warning(
                "activations for %s are sent as f32 where %s cannot hold them", self.address, self.hello.wire
            )

    async def send(self, message: Message) -> None:
        """Send, after waiting until the peer keeps up. Callers are served in order."""
        async with self._send_turn:
            while not self.is_writable and not self.closed.is_set():
                self._drained = self._loop.create_future()
                if self._outgoing is not None and self._outgoing.backlog:
                    self._loop.call_later(self._outgoing.seconds_until(WRITE_LOW), self._wake_sender)
                await self._drained
            self.post(message)

    async def close(self, reason: str = "") -> None:
        """End the link in good order; returns when it is closed. The peer learns the reason."""
        self._closed_here = True
        self._hang_up(NORMAL, reason)
        await self.closed.wait()

    def fail(self, error: SkippyError) -> None:
        """End the link because of an error, which the peer is told."""
        if self.error is None:
            self.error = error
        if self._socket.is_open and not self.closed.is_set():
            self._send_frame(self._connection.refuse(error))
        self._hang_up(POLICY, f"{error.code}: {error}")

    # --- receiving ------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages in order, until the link ends. Reading stops while too many wait."""
        while True:
            while self._inbox:
                yield self._inbox.popleft()
                if self._reading_paused and len(self._inbox) <= INBOX_LOW:
                    self.resume()
            if self.closed.is_set():
                return
            self._inbox_waiter = self._loop.create_future()
            await self._inbox_waiter

    def pause(self) -> None:
        """Read no more from the socket, so that the peer has to wait. Its silence is not held against it."""
        self._reading_paused = True
        self._socket.pause()

    def resume(self) -> None:
        """Read on."""
        self._reading_paused = False
        self._heartbeat.heard(time.monotonic())
        self._socket.resume()

    # --- for open_link and serve_links ----------------------------------------------------------------------

    def greet(self) -> None:
        """Opener: send the Hello."""
        self._send_frame(self._connection.greet())

    async def greeting(self) -> Hello | Welcome:
        """The peer's first message; raises what went wrong instead."""
        return await asyncio.shield(self._greeting)

    def accept(self, welcome: Welcome) -> None:
        """Acceptor: agree, and begin."""
        self._send_frame(self._connection.accept(welcome))
        self._begin()

    def emulate(self, emulation: LinkEmulation, salt: str) -> None:
        """Opener: delay both directions once the handshake is done."""
        self._lines = (
            DelayLine(emulation, f"{salt}/out", self._socket.send),
            DelayLine(emulation, f"{salt}/in", self._frame_received),
        )

    # --- inside ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed.is_set() or not self._socket.is_open:
            reason = self.reason or self.error or "it is going down"
            raise LinkError(f"the link to {self.address} is closed: {reason}")

    def _buffered(self) -> float:
        backlog = self._outgoing.backlog if self._outgoing is not None else 0
        return self._socket.buffered + backlog

    def _transmit(self, message: Message) -> None:
        with self._sending:
            self._send_frame(self._connection.send(message))

    def _send_frame(self, frame: bytes) -> None:
        data = seal(frame)
        if self._outgoing is None:
            self._socket.send(data)
        else:
            self._outgoing.push(data, heartbeat=codec.is_heartbeat(frame))

    def _hang_up(self, code: int, reason: str) -> None:
        if self._outgoing is not None:
            self._outgoing.flush()
        if self.closed.is_set():
            return
        if self._reading_paused:
            self.resume()  # or the peer's answer to the close would never be read
        self._socket.close(code, reason)

    def _begin(self) -> None:
        """The handshake is done: larger frames may come, and heartbeats start."""
        self._socket.set_max_message(self._connection.max_frame_bytes + CHECKSUM_BYTES)
        if self._lines is not None:
            self._outgoing, self._incoming = self._lines
        self._heartbeat.heard(time.monotonic())
        self._beat()

    def _heard(self) -> None:
        self._heartbeat.heard(time.monotonic())

    def _bytes_received(self, data: bytes) -> None:
        if self._incoming is None:
            self._frame_received(data)
        else:
            self._incoming.push(data, heartbeat=codec.is_heartbeat(data))

    def _frame_received(self, data: bytes) -> None:
        if self.error is not None or self.closed.is_set():
            return  # what follows a violation is not looked at
        try:
            message = self._connection.receive(unseal(data))
            self._dispatch(message)
        except SkippyError as error:
            if not self._greeting.done():
                self._greeting.set_exception(error)
                self._greeting.exception()
            self.fail(error)
        except Exception as error:
            log.exception("a message from %s could not be handled", self.address)
            self.fail(SkippyError(f"internal error ({type(error).__name__})", code="internal"))

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, Ping):
            if self.is_writable:  # else the peer does not read: more pongs would only pile up
                busy_ms, queued = self.busy()
                self._transmit(Pong(message.sent_us, busy_ms, queued))
        elif isinstance(message, Pong):
            self._heartbeat.pong(message, time.monotonic())
        elif isinstance(message, (Hello, Welcome)):
            self._greeting.set_result(message)
            if isinstance(message, Welcome):
                self._begin()
        else:
            if isinstance(message, ErrorMessage):
                self.peer_error = message
            if self._on_message is not None:
                self._on_message(message)
            else:
                self._keep(message)

    def _keep(self, message: Message) -> None:
        self._inbox.append(message)
        if len(self._inbox) >= INBOX_HIGH and not self._reading_paused:
            self.pause()
        self._wake_reader()

    def _beat(self) -> None:
        now = time.monotonic()
        if self._heartbeat.is_silent(now) and not self._reading_paused:
            if self.error is None:
                silence = f"{self.address} has been silent for {self._timeouts.silent:g} s"
                self.error = LinkError(silence, code="silent")
            self._socket.abort()
            return
        ping = self._heartbeat.ping(now)
        if ping is not None and self.is_writable and self._socket.is_open:
            self._transmit(ping)
        delay = self._heartbeat.next_event() - now if not self._reading_paused else self._timeouts.heartbeat
        self._heartbeat_timer = self._loop.call_later(max(delay, 0.001), self._beat)

    def _lost(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self._incoming is not None:
            self._incoming.flush()
        if self._outgoing is not None:
            self._outgoing.flush()
        if self.error is None and not self._closed_here:
            self.error = LinkError(f"{self.address} closed the link: {self._socket.close_reason}")
        self.closed.set()
        if not self._greeting.done():
            self._greeting.set_exception(self.error or LinkError(f"the link to {self.address} was closed"))
            self._greeting.exception()
        self._wake_sender()
        self._wake_reader()
        if self._on_close is not None:
            self._on_close(self)

    def _wake_sender(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _wake_reader(self) -> None:
        if self._inbox_waiter is not None and not self._inbox_waiter.done():
            self._inbox_waiter.set_result(None)
