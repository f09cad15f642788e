"""What each microsecond of a plain token is: the steps between two decisions of the coordinator.

Marks of all processes lie on one clock, and with one window under way their order is a window's way through
the processes. Between two decisions lies one token; the tokens whose marks come in the usual order are taken
(heartbeats and prefill make others), and every step is the time between neighbouring marks.

A stage that is the whole model computes ahead while the coordinator decides. There the compute thread alone
makes a token's time, from one window that it takes to the next.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from engine.bench.arms import Arm, Kind
from engine.bench.runners import open_engine
from engine.bench.traced import Mark, Marks, Point, read_marks
from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan, StageAddress, TopologyPlan
from engine.errors import SkippyError

_TRACED = (sys.executable, "-P", "-m", "engine.bench.traced")
_QUESTION = "Write a Python function that checks if a number is prime."

WIRE = "between processes"

# What lies between two points. Where the second is not listed, the first alone says it.
_STEPS = {
    (Point.ARRIVED, Point.RECEIVED): "WebSocket frame, checksum, decoding, checks",
    (Point.ARRIVED, Point.SUBMITTED): "WebSocket frame, checksum, decoding, checks",
    (Point.RECEIVED, Point.DECIDING): "dispatch of the reply",
    (Point.DECIDING, Point.DECIDED): "acceptance, and the decision on the next window",
    (Point.DECIDED, Point.SUBMITTED): "the window as a message",
    (Point.SUBMITTED, Point.TAKEN): "hand-over to the compute thread",
    (Point.TAKEN, Point.LOOKING_UP): "checks of the window",
    (Point.TAKEN, Point.COMPUTING): "checks of the window, the batch for llama.cpp",
    (Point.LOOKING_UP, Point.LOOKED_UP): "lookup of the token embedding",
    (Point.LOOKED_UP, Point.COMPUTING): "the batch for llama.cpp",
    (Point.COMPUTING, Point.COMPUTED): "llama.cpp",
    (Point.COMPUTED, Point.SAMPLING): "bookkeeping of the sequence",
    (Point.SAMPLING, Point.SAMPLED): "sampling (argmax)",
    (Point.COMPUTED, Point.POSTED): "hidden states taken, message, hand-over to the link",
    (Point.SAMPLED, Point.POSTED): "reply, hand-over to the link",
    (Point.SAMPLED, Point.RECEIVED): "reply, hand-over to the event loop",
    (Point.POSTED, Point.WRITING): "checks, encoding, checksum",
    (Point.WRITING, Point.ARRIVED): "socket: write, kernel, wake-up of the reader",
}
_STEPS_AHEAD = _STEPS | {
    (Point.SAMPLED, Point.TAKEN): "wait for the next window",
    (Point.TAKEN, Point.COMPUTING): "its reply, hand-over to the event loop, the next batch for llama.cpp",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a token's way: microseconds, median over tokens and the middle nine tenths."""

    process: str
    what: str
    median_us: float
    low_us: float
    high_us: float

    @property
    def is_llama(self) -> bool:
        return self.what == _STEPS[Point.COMPUTING, Point.COMPUTED]


@dataclass(frozen=True, slots=True)
class Work:
    """Processor time that a thread spends for one token, microseconds (median), llama.cpp's apart."""

    process: str
    thread: str
    llama_us: float
    python_us: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one arrangement of stages."""

    name: str
    tokens: int
    token_us: float  # median
    marking_us: float  # of that, about so much is the noting of marks
    steps: tuple[Step, ...]
    work: tuple[Work, ...]


async def measure_budgets(plan: RunPlan, split: int, *, answers: int, tokens: int) -> list[Budget]:
    """Plain decoding in one stage and in two, cut before layer `split`. Raises SkippyError."""
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one"
        await _answer(plan, TopologyPlan(stages=1), one, answers, tokens)
        coordinator, stage = Path(folder) / "coordinator", Path(folder) / "stage"
        async with _traced_stage(plan, split, stage) as url:
            await _answer(plan, TopologyPlan(remote=(StageAddress(url),)), coordinator, answers, tokens)
        return [
            budget_ahead("one stage", "engine", read_marks(one)),
            budget("two stages", {"engine, stage 0": read_marks(coordinator), "stage 1": read_marks(stage)}),
        ]


async def _answer(plan: RunPlan, topology: TopologyPlan, marks: Path, answers: int, tokens: int) -> None:
    arm = Arm(Kind.ENGINE, plan.compute.threads)
    async with AsyncExitStack() as stack:
        command = (*_TRACED, "engine", str(marks))
        runner = await open_engine(replace(plan, topology=topology), stack, command)
        for number in range(answers + 1):
            request = GenerateRequest(
                request=f"budget-{number}",
                messages=({"role": "user", "content": _QUESTION},),
                max_tokens=tokens,
                strategy=arm.strategy,
            )
            await runner.answer(arm, request)
            if number == 0:
                marks.write_bytes(b"")  # it was for warming up


@asynccontextmanager
async def _traced_stage(plan: RunPlan, split: int, marks: Path) -> AsyncIterator[str]:
    """The last stage in a process of its own; gives its URL."""
    compute = plan.compute
    process = await asyncio.create_subprocess_exec(
        *_TRACED,
        *("stage", str(marks), "--model", plan.model, "--layers", f"{split}:"),
        *("--threads", str(compute.threads), "--ctx", str(compute.context)),
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield await _url(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends then
        await process.wait()


async def _url(process: Process) -> str:
    assert process.stdout is not None
    words = (await process.stdout.readline()).decode().split()
    if words[:1] != ["ready"]:
        raise SkippyError("the stage for the budget did not start", hint="its reason stands above")
    return words[1]


Placed = tuple[str, Mark]
Token = Sequence[Placed]
StepNames = Mapping[tuple[Point, Point], str]


def budget(name: str, marks: dict[str, Sequence[Mark]]) -> Budget:
    """Sort the marks of all processes (the coordinator's first) into steps.

    Raises SkippyError if they hold no two tokens that went the same way.
    """
    tokens = _usual_tokens(marks, Point.DECIDING)
    return _budget(name, tokens, _STEPS, _work(tokens))


def budget_ahead(name: str, process: str, marks: Sequence[Mark]) -> Budget:
    """Sort the marks of an engine in one stage into the steps of its compute thread. Raises as `budget`."""
    computing = {mark.thread for mark in marks if mark.point is Point.COMPUTING}
    tokens = _usual_tokens({process: [mark for mark in marks if mark.thread in computing]}, Point.TAKEN)
    decisions = [mark for mark in marks if mark.thread not in computing]
    loop = _work(_usual_tokens({process: decisions}, Point.DECIDING))
    return _budget(name, tokens, _STEPS_AHEAD, [*loop, *_work(tokens)])


def _budget(name: str, tokens: Sequence[Token], names: StepNames, work: Sequence[Work]) -> Budget:
    steps = len(tokens[0]) - 1
    return Budget(
        name=name,
        tokens=len(tokens),
        token_us=statistics.median(_microseconds(token[0], token[-1]) for token in tokens),
        marking_us=steps * mark_cost_us(),
        steps=tuple(_step(tokens, at, names) for at in range(steps)),
        work=tuple(work),
    )


def _usual_tokens(marks: dict[str, Sequence[Mark]], cut: Point) -> list[Token]:
    """The marks between one `cut` and the next, where they come in the order in which they mostly come."""
    merged = [(process, mark) for process, own in marks.items() for mark in own]
    merged.sort(key=lambda placed: placed[1].at)
    cuts = [at for at, (_, mark) in enumerate(merged) if mark.point is cut]
    tokens = [merged[a : b + 1] for a, b in pairwise(cuts)]
    ways = Counter(_way(token) for token in tokens)
    if not ways or max(ways.values()) < 2:
        raise SkippyError("too few tokens were traced", hint="measure again")
    usual = ways.most_common(1)[0][0]
    return [token for token in tokens if _way(token) == usual]


def mark_cost_us(marks: int = 2000) -> float:
    """Microseconds that one mark costs here."""
    with tempfile.NamedTemporaryFile() as file:
        kept = Marks(Path(file.name))
        begun = time.perf_counter()
        for _ in range(marks):
            kept.add(Point.ARRIVED)
        return (time.perf_counter() - begun) * 1e6 / marks


def _way(token: Token) -> tuple[tuple[str, Point], ...]:
    return tuple((process, mark.point) for process, mark in token)


def _microseconds(first: Placed, last: Placed) -> float:
    return (last[1].at - first[1].at) / 1000


def _step(tokens: Sequence[Token], at: int, names: StepNames) -> Step:
    (process, first), (other, second) = tokens[0][at], tokens[0][at + 1]
    what = names.get((first.point, second.point), f"{first.point.name} to {second.point.name}".lower())
    times = sorted(_microseconds(token[at], token[at + 1]) for token in tokens)
    margin = len(times) // 20
    return Step(
        process=process if process == other else WIRE,
        what=what,
        median_us=statistics.median(times),
        low_us=times[margin],
        high_us=times[-1 - margin],
    )


def _work(tokens: Sequence[Token]) -> list[Work]:
    """Processor time from a thread's first mark of a token to its first mark of the next one."""
    found = []
    threads = dict.fromkeys((process, mark.thread) for process, mark in tokens[0][:-1])
    for process, thread in threads:
        own = [
            [mark for place, mark in token if (place, mark.thread) == (process, thread)] for token in tokens
        ]
        following = {marks[0].at: marks[0].cpu for marks in own}
        starts = sorted(following)
        spent = [following[b] - following[a] for a, b in pairwise(starts)]
        llama = [sum(_llama_ns(marks)) for marks in own]
        computes = any(llama)
        found.append(
            Work(
                process=process,
                thread="compute thread" if computes else "event loop",
                llama_us=statistics.median(llama) / 1000,
                python_us=(statistics.median(spent) - statistics.median(llama)) / 1000,
            )
        )
    return found


def _llama_ns(marks: Sequence[Mark]) -> list[int]:
    return [second.cpu - first.cpu for first, second in pairwise(marks) if first.point is Point.COMPUTING]
