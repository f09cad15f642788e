"""An engine in this process, with local stages in processes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.coordinator.engine import Engine
from engine.events import Event


@dataclass
class Running:
    """An engine and everything it has said."""

    engine: Engine
    events: list[Event] = field(default_factory=list)
    count: int = 0

    async def ask(self, prompt: str, **options: Any) -> dict[str, Any]:
        """The JSON result of a chat with one question."""
        return await self.chat([{"role": "user", "content": prompt}], **options)

    async def chat(self, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
        """The JSON result of a chat."""
        self.count += 1
        request = GenerateRequest(request=f"r{self.count}", messages=tuple(messages), **options)
        finished = await self.engine.generate(request)
        return finished.result

    def of_kind(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


StartEngine = Callable[..., Awaitable[Running]]


def plain_plan(model: str = "demo", split: tuple[int, ...] = (15,), **changes: Any) -> RunPlan:
    """Plain decoding with one thread per stage: bit-exact."""
    values: dict[str, Any] = {
        "model": model,
        "topology": TopologyPlan(stages=len(split) + 1, split=split),
        "compute": ComputePlan(threads=1, context=1024),
        "speculation": SpeculationPlan(strategy="disabled"),
    }
    return RunPlan(**(values | changes))


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts engines and ends them, with their stages, after the test."""
    async with AsyncExitStack() as stack:

        async def start(plan: RunPlan) -> Running:
            events: list[Event] = []
            engine = Engine(plan, events.append)
            stack.push_async_callback(engine.close)
            await engine.start()
            return Running(engine, events)

        yield start
