"""What front ends use: start an engine or attach to one, send requests, read events.

There is one stream of events, and one reader of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engine.client.answers import Answers
from engine.client.link import EngineLink, LinkClosed
from engine.client.process import ENGINE_COMMAND, EngineProcess
from engine.client.requests import GenerateRequest, cancel_request, emulate_request, set_request
from engine.config.plan import RunPlan
from engine.config.rules import with_speculation
from engine.errors import EngineLost, SkippyError
from engine.events import EngineState, Event, EventsDropped, Notice, RequestFinished
from engine.protocol.messages import LinkEmulation
from engine.timeouts import TIMEOUTS, Timeouts


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

    An engine that is lost in the middle of an answer is started (or attached to) again, and the same answer
    goes on: events tell of it, and no token is told twice. Otherwise, once the engine is gone, every method
    raises EngineLost until `restart`.
    """

    def __init__(self, target: LocalEngine | RunningEngine, timeouts: Timeouts = TIMEOUTS) -> None:
        self._target = target
        self._timeouts = timeouts
        self._process: EngineProcess | None = None
        self._link: EngineLink | None = None
        self._answers = Answers()
        self._own: deque[Event] = deque()  # events of ours, to be told before the engine's
        self._resuming: EngineLost | None = None  # why the engine that is being started is not the first

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
            self._link = await EngineLink.open(target.url, target.token, timeouts)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave. An engine that we started ends, by force if it does not in time."""
        self._answers.forget()
        await self._leave()

    async def _leave(self) -> None:
        process, self._process = self._process, None
        link, self._link = self._link, None
        if process is not None and link is not None and link.silent:
            await process.kill()  # it would not see that its standard input closes
        elif process is not None:
            await process.stop()
        if link is not None:
            await link.close()

    async def restart(self) -> None:
        """Open again in place of an engine that was lost; the first time, the same as `open`."""
        await self.close()
        await self.open()

    async def next_event(self) -> Event:
        """The next event of the engine. Cancelling this loses no event."""
        while True:
            if self._own:
                return self._own.popleft()
            try:
                event = await self._open_link().next_event()
            except LinkClosed as closed:
                await self._begin_again(await self._lost(closed))
                continue
            if isinstance(event, EngineState) and self._resuming is not None:
                await self._go_on(event, self._resuming)
            if isinstance(event, EventsDropped):
                self._answers.forget()
            if self._answers.received(event):
                return event

    async def _begin_again(self, lost: EngineLost) -> None:
        """Get another engine for the answers under way; raises why there is none."""
        if not self._answers.lose():
            raise lost
        self._resuming = lost
        text = f"{lost.message}: it is started again and the answer goes on"
        self._own.append(Notice(at=time.monotonic(), level="warning", code=lost.code, message=text))
        self._own.append(EngineState(at=time.monotonic(), state="recovering", detail=lost.message))
        try:
            await self._leave()
            await self.open()
        except SkippyError as error:
            raise EngineLost(f"{lost.message}, and there is no other: {error}", hint=lost.hint) from error

    async def _go_on(self, state: EngineState, lost: EngineLost) -> None:
        """Resume the answers under way once the new engine is ready."""
        if state.state == "failed":
            raise EngineLost(f"{lost.message}, and the next one failed: {state.detail}", hint=lost.hint)
        if state.state == "ready":
            self._resuming = None
            for message in self._answers.to_resend():
                with contextlib.suppress(LinkClosed):
                    await self._open_link().send(message)

    async def events(self) -> AsyncIterator[Event]:
        """Every event, until the engine is gone."""
        while True:
            yield await self.next_event()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Send a request; yields every event up to the end of the answer, also those about other things."""
        message = request.to_dict()
        self._answers.sent(message)
        with contextlib.suppress(LinkClosed):  # reading says so too, and gets another engine
            await self._open_link().send(message)
        async for event in self.events():
            yield event
            if isinstance(event, RequestFinished) and event.request == request.request:
                return

    async def cancel(self, request: str) -> None:
        """Stop an answer. It still ends with `RequestFinished`."""
        if self._resuming is None:
            await self.send(cancel_request(request))
        else:  # there is no engine to tell yet
            self._own.extend(self._answers.cancelled(request))

    async def set_values(self, values: Mapping[str, Any]) -> None:
        """Change settings of speculation from the next window on; a wrong one is answered by a Notice."""
        if isinstance(self._target, LocalEngine):  # an engine in its place is started with them
            plan = self._target.plan
            with contextlib.suppress(SkippyError):
                plan = replace(plan, speculation=with_speculation(plan.speculation, values))
            self._target = replace(self._target, plan=plan)
        await self.send(set_request(values))

    async def set_emulation(self, emulation: LinkEmulation) -> None:
        """Delay every link like this from the next answer on."""
        if isinstance(self._target, LocalEngine):
            plan = self._target.plan
            plan = replace(plan, topology=replace(plan.topology, emulation=emulation))
            self._target = replace(self._target, plan=plan)
        await self.send(emulate_request(emulation))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one request."""
        self._answers.sent(message)
        try:
            await self._open_link().send(message)
        except LinkClosed as closed:
            self._answers.forget()
            raise await self._lost(closed) from None

    def _open_link(self) -> EngineLink:
        if self._link is None:
            raise EngineLost("there is no engine", hint="start it again")
        return self._link

    async def _lost(self, closed: LinkClosed) -> EngineLost:
        """What became of the engine, now that its link is closed."""
        hint = self._process.hint if self._process is not None else ""
        if closed.silent:
            return EngineLost(
                f"the engine has not answered for {self._timeouts.engine_silent:g} s", hint=hint
            )
        if self._process is None:
            return EngineLost("the engine closed the link")
        try:
            async with asyncio.timeout(self._timeouts.engine_ending):
                ending = await self._process.wait()
        except TimeoutError:
            ending = "closed the link"
        return EngineLost(f"the engine {ending}", hint=hint)
