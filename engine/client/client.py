"""What front ends use: start an engine or attach to one, send requests, read events.

There is one stream of events and one reader of it. The connection is read only as fast as the front end
reads: the engine drops what does not fit in its queue, and says how much it dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from engine.client.process import ENGINE_COMMAND, EngineProcess
from engine.client.requests import GenerateRequest, cancel_request, set_request, status_request
from engine.client.timeouts import TIMEOUTS, ClientTimeouts
from engine.config.plan import RunPlan
from engine.errors import EngineLost, LinkError, ProtocolError, Unauthorized
from engine.events import Event, RequestFinished, from_dict

MAX_FRAME = 64 << 20  # bytes of one batch of events
UNANSWERED_PING = 1011  # close code that websockets uses when a ping stays unanswered


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine to be started for a plan, as a child process."""

    plan: RunPlan
    log_path: Path
    command: Sequence[str] = ENGINE_COMMAND


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that somebody else started."""

    url: str
    token: str = field(default="", repr=False)


class EngineClient:
    """A connection to one engine: `async with EngineClient(LocalEngine(plan, log)) as client`.

    Once the engine is gone, every method raises EngineLost until `restart`.
    """

    def __init__(self, target: LocalEngine | RunningEngine, timeouts: ClientTimeouts = TIMEOUTS) -> None:
        self._target = target
        self._timeouts = timeouts
        self._process: EngineProcess | None = None
        self._connection: ClientConnection | None = None
        self._received: deque[Event] = deque()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pid(self) -> int:
        """Of the engine that we started; 0 when attached to another's."""
        return self._process.pid if self._process is not None else 0

    async def open(self) -> None:
        """Start the engine, or attach to it. It may still be loading: its events tell."""
        target, timeouts = self._target, self._timeouts
        if isinstance(target, LocalEngine):
            self._process = await EngineProcess.start(
                target.plan, target.log_path, command=target.command, timeouts=timeouts
            )
            target = RunningEngine(self._process.url, self._process.token)
        try:
            self._connection = await _attach(target, timeouts)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave. An engine that we started ends, by force if it does not in time."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        self._received.clear()
        if process is not None:
            await process.stop()
        if connection is not None:
            await connection.close()

    async def restart(self) -> None:
        """Start a fresh engine in place of a lost one, or attach again."""
        await self.close()
        await self.open()

    async def next_event(self) -> Event:
        """The next event of the engine. Cancelling this loses no event."""
        while not self._received:
            try:
                frame = await self._open_connection().recv()
            except ConnectionClosed as error:
                raise await self._lost(error) from None
            self._received.extend(_events_of(frame))
        return self._received.popleft()

    async def events(self) -> AsyncIterator[Event]:
        """Every event, until the engine is gone."""
        while True:
            yield await self.next_event()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Send a request; yields every event up to the end of the answer, also those about other things."""
        await self.send(request.to_dict())
        async for event in self.events():
            yield event
            if isinstance(event, RequestFinished) and event.request == request.request:
                return

    async def cancel(self, request: str) -> None:
        """Stop an answer. It still ends with `RequestFinished`."""
        await self.send(cancel_request(request))

    async def set_values(self, values: Mapping[str, Any]) -> None:
        """Change settings of speculation from the next window on; a wrong one is answered by a Notice."""
        await self.send(set_request(values))

    async def status(self) -> None:
        """Ask for the states of engine, model and stages."""
        await self.send(status_request())

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one request."""
        try:
            async with asyncio.timeout(self._timeouts.send):
                await self._open_connection().send(orjson.dumps(message).decode())
        except ConnectionClosed as error:
            raise await self._lost(error) from None
        except TimeoutError:
            raise EngineLost(f"the engine took no request for {self._timeouts.send:g} s") from None

    def _open_connection(self) -> ClientConnection:
        if self._connection is None:
            raise EngineLost("there is no engine", hint="start it again")
        return self._connection

    async def _lost(self, error: ConnectionClosed) -> EngineLost:
        """What became of the engine, now that its link is closed."""
        if error.sent is not None and error.sent.code == UNANSWERED_PING and error.rcvd is None:
            silent = EngineLost(f"the engine has not answered for {self._timeouts.silence:g} s")
            silent.hint = self._process.hint if self._process is not None else ""
            return silent
        if self._process is None:
            return EngineLost("the engine closed the link")
        try:
            async with asyncio.timeout(self._timeouts.ending):
                ending = await self._process.wait()
        except TimeoutError:
            ending = "closed the link"
        return EngineLost(f"the engine {ending}", hint=self._process.hint)


async def _attach(target: RunningEngine, timeouts: ClientTimeouts) -> ClientConnection:
    try:
        return await connect(
            target.url,
            additional_headers={"Authorization": f"Bearer {target.token}"},
            compression=None,
            proxy=None,
            max_size=MAX_FRAME,
            open_timeout=timeouts.connect,
            ping_interval=timeouts.ping_interval,
            ping_timeout=timeouts.silence,
            close_timeout=timeouts.ending,
        )
    except InvalidStatus as error:
        if error.response.status_code == 401:
            raise Unauthorized(
                f"the engine at {target.url} refused our token", hint="give the right --token-file"
            ) from None
        raise LinkError(f"{target.url} answered with HTTP {error.response.status_code}") from None
    except TimeoutError:
        raise LinkError(f"no answer from {target.url} within {timeouts.connect:g} s") from None
    except (OSError, InvalidURI, InvalidHandshake) as error:
        raise LinkError(f"cannot reach the engine at {target.url}: {error}") from None


def _events_of(frame: str | bytes) -> list[Event]:
    try:
        return [from_dict(data) for data in orjson.loads(frame)["events"]]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the engine sent no events: {type(error).__name__} {error}") from error
