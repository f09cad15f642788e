"""The one place where the app meets the engine: events in, state out, requests through.

`Feed` reads every event into the pure reducer and wakes whoever waits. Widgets never see an event; they look
at `feed.state` when the app redraws. An engine that is lost stays lost until `ready` is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from engine.client.requests import GenerateRequest
from engine.errors import EngineLost, SkippyError
from engine.events import EngineState, Event, Notice, RequestFinished, RequestStarted
from engine.protocol.messages import LinkEmulation
from engine.reducer import apply
from engine.timeouts import TIMEOUTS
from engine.view import Request, Series, ViewState

# What somebody may wait for; waking them for every token would cost more than to read it.
_AWAITED = (EngineState, Notice, RequestStarted, RequestFinished)


class Client(Protocol):
    """What the app needs of `engine.client.client.EngineClient`."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def next_event(self) -> Event: ...
    async def send(self, message: Mapping[str, Any]) -> None: ...
    async def cancel(self, request: str) -> None: ...
    async def set_values(self, values: Mapping[str, Any]) -> None: ...
    async def set_emulation(self, emulation: LinkEmulation) -> None: ...


class Feed:
    """One engine at a time, and the state that its events add up to."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self.state = ViewState()
        self.failure: SkippyError | None = None  # why there is no engine
        self.clock_offset: float | None = None  # our clock less the engine's
        self._client = client
        self._clock = clock
        self._changed = asyncio.Condition()
        self._running: asyncio.Task[None] | None = None
        self._ended = ""  # the request that ended last, also one that was refused before it began

    # -- the engine ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to open the engine and to read its events; returns at once."""
        self.failure = None
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Leave the engine; one of our own ends."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
            self._running = None
        await self._client.close()

    async def replace(self, client: Client) -> None:
        """Leave this engine for another one."""
        await self.close()
        self._client = client
        self._forget()
        self.start()

    async def ready(self) -> None:
        """Wait until the engine can answer, starting it again if it is lost. Raises why it cannot."""
        if self._running is None or self._running.done() or self._has_failed():
            await self.close()
            self._forget()
            self.start()
        await self.started()

    async def started(self) -> None:
        """Wait until the engine that was begun can answer. Raises why it cannot."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.failure or self.is_ready or self._has_failed())
        if self.failure is not None:
            raise self.failure
        engine = self.state.engine
        if engine is not None and engine.state == "failed":
            raise SkippyError(engine.detail)

    def _forget(self) -> None:
        """What was true of another engine. What people have been told stays."""
        self.state = ViewState(
            notices=self.state.notices, totals=self.state.totals, request=self.state.request
        )
        self.clock_offset = None

    @property
    def is_ready(self) -> bool:
        """Whether the engine can answer."""
        engine = self.state.engine
        return engine is not None and engine.state == "ready"

    def _has_failed(self) -> bool:
        engine = self.state.engine
        return engine is not None and engine.state in ("failed", "stopped")

    async def _run(self) -> None:
        try:
            await self._take(EngineState(at=self._clock(), state="starting", detail="starting the engine"))
            await self._client.open()
            while True:
                await self._take(await self._client.next_event())
        except SkippyError as error:
            await self._lost(error)

    async def _lost(self, error: SkippyError) -> None:
        self.failure = error
        await self._take(Notice(level="error", code=error.code, message=error.message, hint=error.hint))
        await self._take(EngineState(at=self._clock(), state="failed", detail=str(error)))

    async def _take(self, event: Event) -> None:
        if event.at and not isinstance(event, Notice):
            offset = self._clock() - event.at
            self.clock_offset = offset if self.clock_offset is None else min(self.clock_offset, offset)
        self.state = apply(event, self.state)
        if isinstance(event, RequestFinished):
            self._ended = event.request
        if isinstance(event, _AWAITED):
            async with self._changed:
                self._changed.notify_all()

    def forget_answer(self) -> None:
        """Its figures, and what it left in the stages' caches, belong to a chat that is left."""
        stages = {
            index: replace(stage, timings=Series(), drafting_us=Series(), kv_tokens=0)
            for index, stage in self.state.stages.items()
        }
        self.state = replace(self.state, request=None, stages=stages)

    # -- answers -------------------------------------------------------------------------------------

    async def answer(self, request: GenerateRequest) -> Request | None:
        """The finished request; None if it was refused before it began. Raises EngineLost."""
        await self._client.send(request.to_dict())
        async with self._changed:
            await self._changed.wait_for(lambda: self.failure or self._ended == request.request)
        current = self.state.request
        if current is None or current.id != request.request:
            if self.failure is not None:
                raise self.failure
            return None
        if current.finished is None:
            raise self.failure or EngineLost("the engine is gone")
        return current

    async def cancel(self, request: str) -> None:
        """Stop an answer. An engine that does not stop it in time counts as lost."""
        if self.failure is not None:
            return
        await self._client.cancel(request)
        try:
            async with asyncio.timeout(TIMEOUTS.engine_cancel), self._changed:
                await self._changed.wait_for(lambda: self.failure or not self._is_answering(request))
        except TimeoutError:
            if self._running is not None:
                self._running.cancel()
            await self._lost(EngineLost(f"the engine did not stop within {TIMEOUTS.engine_cancel:g} s"))

    def _is_answering(self, request: str) -> bool:
        current = self.state.request
        return current is not None and current.id == request and current.finished is None

    async def set_values(self, values: Mapping[str, Any]) -> None:
        """Change settings of speculation from the next window on."""
        await self._client.set_values(values)

    async def set_emulation(self, emulation: LinkEmulation) -> None:
        """Delay every link like this from the next answer on."""
        await self._client.set_emulation(emulation)
