"""The local link to an engine: a WebSocket that is always read, and watched.

A front end may be slow, wait at a prompt, or be stopped by Ctrl+Z. Therefore events wait in a bounded queue
of our own, which drops the oldest and says so, and the watch counts turns of our loop rather than seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Self

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from engine.errors import LinkError, ProtocolError, Unauthorized, reason_of
from engine.events import Event, EventsDropped, from_dict
from engine.timeouts import Timeouts

MAX_FRAME = 64 << 20  # bytes of one batch of events
QUEUE_LIMIT = 20_000  # events
WATCH_STEPS = 5  # turns of the loop over which a pong may take its time


class LinkClosed(Exception):
    """The link is closed. The reason: `silent` when the engine answered no ping."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__("silent" if silent else "closed")
        self.silent = silent


class EngineLink:
    """One attached WebSocket."""

    def __init__(self, connection: ClientConnection, timeouts: Timeouts) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._events: deque[Event] = deque()
        self._dropped = 0
        self.silent = False
        self._fault: ProtocolError | None = None
        self._wake = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def open(cls, url: str, token: str, timeouts: Timeouts) -> Self:
        """Attach. Raises LinkError or Unauthorized."""
        try:
            connection = await connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                proxy=None,
                max_size=MAX_FRAME,
                open_timeout=timeouts.connect,
                close_timeout=timeouts.engine_ending,
                ping_interval=None,
            )
        except InvalidStatus as error:
            if error.response.status_code == 401:
                raise Unauthorized(
                    f"the engine at {url} refused our token", hint="give its own: --token-file FILE"
                ) from None
            raise LinkError(f"{url} answered with HTTP {error.response.status_code}") from None
        except TimeoutError:
            raise LinkError(f"no answer from {url} within {timeouts.connect:g} s") from None
        except ConnectionRefusedError:
            raise LinkError(
                f"nothing listens at {url}", hint="start the engine or correct the address"
            ) from None
        except (OSError, InvalidURI, InvalidHandshake) as error:
            raise LinkError(f"cannot reach the engine at {url}: {reason_of(error)}") from None
        return cls(connection, timeouts)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one request. Raises LinkClosed."""
        try:
            async with asyncio.timeout(self._timeouts.engine_send):
                await self._connection.send(orjson.dumps(message).decode())
        except ConnectionClosed:
            raise LinkClosed(silent=self.silent) from None
        except TimeoutError:
            raise LinkClosed(silent=True) from None

    async def next_event(self) -> Event:
        """The next event; cancelling this loses none. Raises LinkClosed after the last one."""
        while not self._events:
            if self._fault is not None:
                raise self._fault
            if self._reading.done():
                raise LinkClosed(silent=self.silent)
            self._wake.clear()
            await self._wake.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return EventsDropped(count=dropped)
        return self._events.popleft()

    async def close(self) -> None:
        """Close it; safe to call again."""
        self._watching.cancel()
        await self._connection.close()
        await asyncio.wait({self._reading})

    async def _read(self) -> None:
        try:
            async for frame in self._connection:
                for event in _events_of(frame):
                    self._put(event)
        except ConnectionClosed:
            pass
        except ProtocolError as error:
            self._fault = error
            await self._connection.close()
        finally:
            self._wake.set()

    def _put(self, event: Event) -> None:
        if len(self._events) >= QUEUE_LIMIT:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._wake.set()

    async def _watch(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._timeouts.engine_heartbeat)
                if not await self._alive():
                    self.silent = True
                    self._connection.transport.abort()
                    return
        except ConnectionClosed:
            pass

    async def _alive(self) -> bool:
        pong = asyncio.ensure_future(await self._connection.ping())
        for _ in range(WATCH_STEPS):
            done, _pending = await asyncio.wait({pong}, timeout=self._timeouts.engine_silent / WATCH_STEPS)
            if done:
                await pong
                return True
        return False


def _events_of(frame: str | bytes) -> list[Event]:
    try:
        return [from_dict(data) for data in orjson.loads(frame)["events"]]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the engine sent no events: {type(error).__name__} {error}") from error
