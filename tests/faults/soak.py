"""Random faults, one in each answer: `python -m tests.faults.soak --faults 200 --seed 1`.

Three arenas take turns: local stages of an engine in this process, stages elsewhere behind proxies, and an
engine process of its own. Every answer has to equal the undisturbed one, or end with a clear error and a part
of it. What this process holds (descriptors, threads, tasks, children, files, memory) is counted before and
after. `--json` prints the figures as one object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.events import EngineState, Event, PrefillProgress, RequestFinished, TokensCommitted
from engine.timeouts import TIMEOUTS
from tests.faults.elsewhere import Proxy, StageElsewhere
from tests.faults.harness import DRAWN, Disturbed, plan, remote_plan
from tests.faults.processes import children, is_gone
from tests.faults.tiny_llama import write_tiny_llama

BOUND = 60.0  # seconds for an answer with a fault in it, on whatever machine
TOKENS = 80
QUESTIONS = tuple(f"{number}: " + "Repeat what I say. " * number for number in (1, 10, 40))

Trigger = Callable[[Event], bool]


@dataclass
class Outcome:
    """What became of one answer."""

    arena: str
    fault: str
    equal: bool
    error: str = ""
    recovery_s: float = 0.0  # from the fault to the next token, where there was one


@dataclass
class Holdings:
    """What this process holds."""

    descriptors: int
    threads: int
    tasks: int
    children: int
    files: int
    resident: int

    @classmethod
    def count(cls, folder: Path) -> Holdings:
        gc.collect()
        pid = os.getpid()
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            children=len([child for child in children(pid) if not is_gone(child)]),
            files=sum(1 for path in folder.rglob("*") if path.is_file()),
            resident=int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        )


class Arena(ABC):
    """A running set-up and the faults that can strike it."""

    name: str
    faults: Sequence[str]

    @abstractmethod
    async def answer(self, fault: str, question: str, when: Trigger) -> tuple[dict[str, Any], float]:
        """The result of an answer with a fault in it, and the seconds until tokens came again."""


class InProcess(Arena):
    """An engine in this process."""

    def __init__(self, running: Disturbed) -> None:
        self.running = running

    async def answer(self, fault: str, question: str, when: Trigger) -> tuple[dict[str, Any], float]:
        running = self.running
        running.events.clear()
        running.times.clear()
        pending: list[asyncio.Task[None]] = []
        running.trap(when, lambda: pending.append(asyncio.create_task(self.strike(fault))))
        result = await running.ask(question, max_tokens=TOKENS)
        await asyncio.gather(*pending)
        return result, _recovery(running.events, running.times, running.struck_at)

    @abstractmethod
    async def strike(self, fault: str) -> None:
        """Let a fault happen, and mend what nobody else would."""


class LocalStages(InProcess):
    """Two stage processes of the engine."""

    name = "local"
    faults = ("kill 1", "kill 2", "kill both", "stop 1", "stop 2")

    async def strike(self, fault: str) -> None:
        verb, which = fault.split()
        number = signal.SIGKILL if verb == "kill" else signal.SIGSTOP
        for stage in self.running.engine._stages._local:  # type: ignore[union-attr]
            if which in (str(stage.index), "both") and stage.pid:
                os.kill(stage.pid, number)


class StagesElsewhere(InProcess):
    """Two stages started by hand, each behind a proxy."""

    name = "elsewhere"
    faults = (
        "kill middle", "kill last", "stop middle", "stop last", "cut middle", "cut last",
        "freeze middle", "freeze last", "damage middle", "damage last", "slow last",
    )  # fmt: skip

    def __init__(self, running: Disturbed, proxies: dict[str, Proxy]) -> None:
        super().__init__(running)
        self._proxies = proxies

    async def strike(self, fault: str) -> None:
        verb, which = fault.split()
        proxy = self._proxies[which]
        if verb == "kill":
            proxy.target.kill()
            await proxy.target.start()
        elif verb == "stop":
            proxy.target.signal(signal.SIGSTOP)
            await asyncio.sleep(TIMEOUTS.silent * 1.5)
            proxy.target.signal(signal.SIGCONT)
        elif verb == "cut":
            proxy.cut()
        elif verb == "freeze":
            proxy.freeze()
            await asyncio.sleep(TIMEOUTS.silent * 1.5)
            proxy.thaw()
        elif verb == "damage":
            for connection in proxy.connections[-2:]:
                connection.corrupt = 1
        else:
            proxy.delay = 0.02
            await asyncio.sleep(0.5)
            proxy.delay = 0.0
        proxy.forget_closed()


class EngineProcess(Arena):
    """An engine with two stages as a child process, as front ends have it."""

    name = "engine"
    faults = ("kill engine", "stop engine", "kill stage")

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._count = 0

    async def answer(self, fault: str, question: str, when: Trigger) -> tuple[dict[str, Any], float]:
        self._count += 1
        request = GenerateRequest(
            request=f"e{self._count}",
            messages=({"role": "user", "content": question},),
            max_tokens=TOKENS,
            sampling=DRAWN,
        )
        events: list[Event] = []
        times: list[float] = []
        struck = 0.0
        async for event in self._client.generate(request):
            events.append(event)
            times.append(time.monotonic())
            if not struck and when(event):
                struck = time.monotonic()
                self._strike(fault)
        finished = events[-1]
        assert isinstance(finished, RequestFinished)
        return finished.result, _recovery(events, times, struck)

    def _strike(self, fault: str) -> None:
        victim = self._client.pid
        if fault == "kill stage":
            victim = children(victim)[0]
        os.kill(victim, signal.SIGSTOP if fault == "stop engine" else signal.SIGKILL)


def _recovery(events: Sequence[Event], times: Sequence[float], struck: float) -> float:
    """Seconds from the fault to the first token after the engine was ready again; 0 if it never was not."""
    ready = [
        at
        for event, at in zip(events, times, strict=True)
        if isinstance(event, EngineState) and event.state == "ready" and at > struck
    ]
    if not struck or not ready:
        return 0.0
    tokens = [
        at
        for event, at in zip(events, times, strict=True)
        if isinstance(event, TokensCommitted) and at >= ready[-1]
    ]
    return tokens[0] - struck if tokens else 0.0


@dataclass
class Report:
    """The figures of a soak."""

    outcomes: list[Outcome] = field(default_factory=list)
    before: Holdings | None = None
    after: Holdings | None = None
    resident: list[int] = field(default_factory=list)  # bytes, sampled after each answer
    left_running: int = 0  # stage and engine processes after everything was closed

    def to_json(self) -> dict[str, Any]:
        tenth = max(1, len(self.resident) // 10)
        by_fault: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            if outcome.recovery_s:
                by_fault.setdefault(f"{outcome.arena}: {outcome.fault}", []).append(outcome.recovery_s)
        return {
            "answers": len(self.outcomes),
            "equal": sum(outcome.equal for outcome in self.outcomes),
            "errors": [outcome.error for outcome in self.outcomes if outcome.error],
            "recovery_s (n, median, max)": {
                name: {
                    "n": len(times),
                    "median": round(statistics.median(times), 2),
                    "max": round(max(times), 2),
                }
                for name, times in sorted(by_fault.items())
            },
            "before": self.before,
            "after": self.after,
            "resident_mib": [round(size / 2**20, 1) for size in self.resident[::tenth]],
            "left_running": self.left_running,
        }


async def soak(faults: int, seed: int, folder: Path) -> Report:
    """Run so many answers with a fault in each; raises AssertionError at the first that is wrong."""
    model = write_tiny_llama(folder / "tiny.gguf")
    report = Report()
    known = await _undisturbed(model)
    report.before = Holdings.count(folder)
    ours = await _strike(faults, random.Random(seed), model, known, report)
    report.left_running = sum(not is_gone(pid) for pid in ours)
    report.after = Holdings.count(folder)
    return report


async def _strike(
    faults: int, rng: random.Random, model: Path, known: dict[str, list[int]], report: Report
) -> set[int]:
    """The soak itself; returns all processes that were seen."""
    ours: set[int] = set()
    async with AsyncExitStack() as stack:
        arenas = await _arenas(stack, model)
        for number in range(faults):
            arena = arenas[number % len(arenas)]
            fault, question = rng.choice(arena.faults), rng.choice(QUESTIONS)
            async with asyncio.timeout(BOUND):
                result, recovery = await arena.answer(fault, question, _trigger(rng))
            report.outcomes.append(_judge(arena.name, fault, result, known[question], recovery))
            report.resident.append(Holdings.count(model.parent).resident)
            ours.update(children(os.getpid()))
    return ours


async def _arenas(stack: AsyncExitStack, model: Path) -> list[Arena]:
    """All three, started."""
    local = Disturbed(plan(model))
    stack.push_async_callback(local.engine.close)
    await local.engine.start()
    proxies: dict[str, Proxy] = {}
    for name, layers in (("middle", "2:4"), ("last", "4:6")):
        stage = StageElsewhere(model, layers)
        stack.push_async_callback(stage.end)
        await stage.start()
        proxies[name] = await stack.enter_async_context(Proxy(stage).listening())
    remote = Disturbed(remote_plan(model, *(proxy.url for proxy in proxies.values())))
    stack.push_async_callback(remote.engine.close)
    await remote.engine.start()
    client = await stack.enter_async_context(
        EngineClient(LocalEngine(plan(model), model.parent / "engine.log"))
    )
    return [LocalStages(local), StagesElsewhere(remote, proxies), EngineProcess(client)]


async def _undisturbed(model: Path) -> dict[str, list[int]]:
    """Token ids of the whole model by question."""
    whole = Disturbed(plan(model, ()))
    await whole.engine.start()
    answers = {question: await whole.ask(question, max_tokens=TOKENS) for question in QUESTIONS}
    await whole.engine.close()
    return {question: answer["token_ids"] for question, answer in answers.items()}


def _trigger(rng: random.Random) -> Trigger:
    """A random moment: during the prompt, or after some tokens."""
    if rng.random() < 0.25:
        return lambda event: isinstance(event, PrefillProgress | TokensCommitted)
    left = rng.randrange(1, TOKENS // 2)

    def after_tokens(event: Event) -> bool:
        nonlocal left
        left -= isinstance(event, TokensCommitted)
        return left <= 0

    return after_tokens


def _judge(arena: str, fault: str, result: dict[str, Any], known: list[int], recovery: float) -> Outcome:
    """An answer is the undisturbed one, or an error with its code, its cause and a part of the answer."""
    tokens = result["token_ids"]
    if result["finish_reason"] != "error":
        assert tokens == known, f"{arena}, {fault}: another answer than the undisturbed one"
        return Outcome(arena, fault, True, recovery_s=recovery)
    error = result["error"]
    assert error["code"], f"{arena}, {fault}: an error without a code"
    assert error["message"], f"{arena}, {fault}: an error without a message"
    assert tokens == known[: len(tokens)], f"{arena}, {fault}: a part of another answer"
    return Outcome(arena, fault, False, error=f"{arena}, {fault}: {error['code']}: {error['message']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(soak(arguments.faults, arguments.seed, Path(folder)))
    option = 0 if arguments.json else orjson.OPT_INDENT_2
    print(orjson.dumps(report.to_json(), option=option).decode())


if __name__ == "__main__":
    main()
