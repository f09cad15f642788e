"""An engine whose every event is seen at once, so that a fault can strike at exactly the wrong moment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, StageAddress, TopologyPlan
from engine.coordinator.engine import Engine
from engine.events import Event, PrefillProgress, StageState, TokensCommitted, WindowSent
from engine.protocol.messages import LinkEmulation, SamplingSettings

DEADLINE = 60.0  # seconds after which a test has hung, on whatever machine
NOTICED = 4.0  # 2 s are promised; a shared machine gets twice that
ANSWERED = 10.0  # 5 s are promised for a failure or a recovery without loading

DRAWN = SamplingSettings(temperature=1.0, seed=5)
"""Sampling with many likely tokens: one wrong row anywhere and the text is another."""

When = Callable[[Event], bool]
Fault = Callable[[], object]


def plan(model: Path, split: tuple[int, ...] = (2, 4), **topology: Any) -> RunPlan:
    """Plain decoding with one thread per stage."""
    return RunPlan(
        model=str(model),
        topology=TopologyPlan(**{"stages": len(split) + 1, "split": split, **topology}),
        compute=ComputePlan(threads=1, context=2048, prefill_rows=32),
        speculation=SpeculationPlan(strategy="disabled"),
    )


def remote_plan(model: Path, *urls: str, token: str = "", **topology: Any) -> RunPlan:
    """Stages that run already; of `a,b`, `b` is the standby of `a`."""
    addresses = []
    for entry in urls:
        url, *standby = entry.split(",")
        addresses.append(StageAddress(url, token, standby=tuple(standby)))
    return plan(model, (), stages=len(urls) + 1, remote=tuple(addresses), **topology)


def drafting(run_plan: RunPlan, strategy: str = "mtp") -> RunPlan:
    """The same, with speculation."""
    return replace(run_plan, speculation=replace(run_plan.speculation, strategy=strategy))


def slowly(rtt_ms: float = 4.0) -> dict[str, Any]:
    """Topology settings with which an answer takes long enough to be hit in the middle."""
    return {"emulation": LinkEmulation(rtt_ms=rtt_ms)}


class Disturbed:
    """An engine in this process, its events, and faults that wait for one of them."""

    def __init__(self, run_plan: RunPlan) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self._traps: list[tuple[When, Fault]] = []
        self.struck = asyncio.Event()
        self.struck_at = 0.0
        self.engine = Engine(run_plan, self._emit)
        self._requests = 0

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        self.times.append(time.monotonic())
        for trap in list(self._traps):
            when, fault = trap
            if when(event):
                self._traps.remove(trap)
                self.strike(fault)

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now."""
        self.struck_at = time.monotonic()
        fault()
        self.struck.set()

    def trap(self, when: When, fault: Fault) -> None:
        """Let a fault happen at the first event that `when` is true for."""
        self.struck.clear()
        self._traps.append((when, fault))

    @property
    def request(self) -> str:
        return f"r{self._requests}"

    async def ask(self, question: str = "Tell me a story.", **options: Any) -> dict[str, Any]:
        """The JSON result of one answer."""
        self._requests += 1
        values = {"max_tokens": 60, "sampling": DRAWN, **options}
        message = {"role": "user", "content": question}
        request = GenerateRequest(request=self.request, messages=(message,), **values)
        async with asyncio.timeout(DEADLINE):
            return (await self.engine.generate(request)).result

    def pid(self, index: int) -> int:
        """Process of a stage, as its last state told it."""
        return next(
            event.pid
            for event in reversed(self.events)
            if isinstance(event, StageState) and event.index == index and event.pid
        )

    def noticed_after(self, index: int) -> float:
        """Seconds from the fault to the event that names the stage as lost."""
        return next(
            at - self.struck_at
            for event, at in zip(self.events, self.times, strict=True)
            if isinstance(event, StageState)
            and event.index == index
            and event.state in ("unreachable", "restarting")
            and at >= self.struck_at
        )

    async def state_of(self, index: int, state: str) -> StageState:
        """Wait until a stage is in a state."""
        async with asyncio.timeout(DEADLINE):
            while True:
                for event in reversed(self.events):
                    if isinstance(event, StageState) and event.index == index:
                        if event.state == state:
                            return event
                        break
                await asyncio.sleep(0.01)

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def disturbed(run_plan: RunPlan) -> AsyncIterator[Disturbed]:
    """A running engine; it is closed whatever happened to its stages."""
    running = Disturbed(run_plan)
    try:
        async with asyncio.timeout(DEADLINE):
            await running.engine.start()
        yield running
    finally:
        async with asyncio.timeout(DEADLINE):
            await running.engine.close()


def in_prefill(event: Event) -> bool:
    """Part of a prompt has been taken."""
    return isinstance(event, PrefillProgress) and 0 < event.done < event.total


def in_decode(event: Event) -> bool:
    """An answer has begun."""
    return isinstance(event, TokensCommitted)


def pipelined(event: Event) -> bool:
    """Several windows are under way."""
    return isinstance(event, WindowSent) and event.in_flight > 1


def killing(running: Disturbed, index: int) -> Fault:
    return lambda: os.kill(running.pid(index), signal.SIGKILL)


def stopping(running: Disturbed, index: int) -> Fault:
    return lambda: os.kill(running.pid(index), signal.SIGSTOP)
