"""An engine in this process, with local stages in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest_asyncio

from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.coordinator.engine import Engine
from engine.events import Event


def chat_request(name: str, question: str) -> GenerateRequest:
    """A chat of one question."""
    return GenerateRequest(request=name, messages=({"role": "user", "content": question},))


@dataclass
class Running:
    """An engine and everything it has said."""

    engine: Engine
    events: list[Event]
    waiting: list[tuple[type[Event], asyncio.Future[Any]]]
    count: int = 0

    @property
    def request(self) -> str:
        """The id of the newest request."""
        return f"r{self.count}"

    async def ask(self, prompt: str, **options: Any) -> dict[str, Any]:
        """The JSON result of a chat with one question."""
        return await self.chat([{"role": "user", "content": prompt}], **options)

    async def chat(self, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
        """The JSON result of a chat."""
        self.count += 1
        request = GenerateRequest(request=self.request, messages=tuple(messages), **options)
        finished = await self.engine.generate(request)
        return finished.result

    async def next_of_kind(self, kind: type[Any]) -> Any:
        """The next event of a kind."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((kind, future))
        return await future

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


async def start_running(plan: RunPlan) -> Running:
    """Start an engine for a plan."""
    events: list[Event] = []
    waiting: list[tuple[type[Event], asyncio.Future[Any]]] = []

    def emit(event: Event) -> None:
        events.append(event)
        for kind, future in waiting:
            if isinstance(event, kind) and not future.done():
                future.set_result(event)

    engine = Engine(plan, emit)
    try:
        await engine.start()
    except BaseException:
        await engine.close()
        raise
    return Running(engine, events, waiting)


@pytest_asyncio.fixture(loop_scope="module")
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts engines and ends them, with their stages, after the test."""
    async with AsyncExitStack() as stack:

        async def start(plan: RunPlan) -> Running:
            running = await start_running(plan)
            stack.push_async_callback(running.engine.close)
            return running

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    """The default model in two stages, shared by the tests of a module."""
    running = await start_running(plain_plan())
    yield running
    await running.engine.close()
