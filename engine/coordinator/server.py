"""The local link: front ends attach to the engine here, send requests and get events.

JSON text frames over a WebSocket on 127.0.0.1, with a token. Events are sent in batches, outside the decode
loop; a front end that reads too slowly loses events and is told how many, it never slows an answer down.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from engine.client.requests import GenerateRequest, emulation_of
from engine.coordinator.engine import Engine, refusal
from engine.errors import SkippyError, UsageError
from engine.events import Event, EventsDropped, Notice
from engine.transport.server import bind

log = logging.getLogger("skippy.link")

QUEUE_LIMIT = 20_000  # events kept for one front end
FLUSH_SECONDS = 0.033  # between two batches: a screen shows no more, and every batch costs the decode loop
GATHER_SECONDS = 0.002  # at least, so that a batch leaves when the compute thread is busy again
MAX_FRAME = 16 << 20  # bytes of one request: a long chat


class FrontEnd:
    """One attached front end and the events that wait for it."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._events: deque[Event] = deque()
        self._dropped = 0
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._events) >= QUEUE_LIMIT:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._wake.set()

    async def pump(self) -> None:
        """Send what has gathered, until the connection closes."""
        next_batch = 0.0
        while True:
            await self._wake.wait()
            await asyncio.sleep(max(GATHER_SECONDS, next_batch - time.monotonic()))
            next_batch = time.monotonic() + FLUSH_SECONDS
            self._wake.clear()
            batch = [event.to_dict() for event in self._events]
            self._events.clear()
            if self._dropped:
                batch.insert(0, EventsDropped(count=self._dropped).to_dict())
                self._dropped = 0
            await self.connection.send(orjson.dumps({"events": batch}).decode())


class LinkServer:
    """Serves the engine to front ends."""

    def __init__(self, token: str, on_shutdown: Callable[[], None]) -> None:
        self._token = token
        self._on_shutdown = on_shutdown
        self._front_ends: set[FrontEnd] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._engine: Engine | None = None
        self._server: Server | None = None

    def emit(self, event: Event) -> None:
        """Queue an event for every front end."""
        for front_end in self._front_ends:
            front_end.put(event)

    async def start(self, engine: Engine, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the URL. Raises LinkError if the address cannot be used."""
        self._engine = engine
        self._server = await serve(
            self._attached,
            sock=bind(socket.AF_INET, host, port),
            compression=None,
            max_size=MAX_FRAME,
            ping_interval=None,
            process_request=self._authorize,
        )
        bound = self._server.sockets[0].getsockname()
        return f"ws://{bound[0]}:{bound[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _authorize(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return None
        log.warning("a front end with a wrong token was refused")
        return connection.respond(HTTPStatus.UNAUTHORIZED, "the token of this engine is needed\n")

    async def _attached(self, connection: ServerConnection) -> None:
        assert self._engine is not None
        front_end = FrontEnd(connection)
        for event in self._engine.snapshot():
            front_end.put(event)
        self._front_ends.add(front_end)
        pump = asyncio.create_task(front_end.pump())
        requests: set[str] = set()
        try:
            async for frame in connection:
                self._handle(front_end, frame, requests)
        except ConnectionClosed:
            pass
        finally:
            self._front_ends.discard(front_end)
            pump.cancel()
            for request in requests:  # nobody is left to read these answers
                self._engine.cancel(request)

    def _handle(self, front_end: FrontEnd, frame: str | bytes, requests: set[str]) -> None:
        try:
            self._perform(orjson.loads(frame), front_end, requests)
        except orjson.JSONDecodeError as error:
            front_end.put(Notice(level="error", code="protocol", message=f"a request is no JSON: {error}"))
        except SkippyError as error:
            front_end.put(Notice(level="error", code=error.code, message=error.message, hint=error.hint))

    def _perform(self, message: Any, front_end: FrontEnd, requests: set[str]) -> None:
        engine = self._engine
        assert engine is not None
        if not isinstance(message, dict):
            raise UsageError("a request must be a JSON object")
        match message.get("op"):
            case "generate":
                try:
                    request = GenerateRequest.from_dict(message)
                except UsageError as error:
                    front_end.put(refusal(str(message.get("request", "")), error))
                    raise
                requests.add(request.request)
                self._spawn(engine.generate(request))
            case "cancel":
                engine.cancel(str(message.get("request", "")))
            case "set":
                values = message.get("values")
                if not isinstance(values, dict):
                    raise UsageError("set needs an object of values")
                engine.set_values(values)
            case "emulate":
                engine.set_emulation(emulation_of(message.get("values")))
            case "status":
                for event in engine.snapshot():
                    front_end.put(event)
            case "shutdown":
                self._on_shutdown()
            case other:
                raise UsageError(f"unknown operation {other!r}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
