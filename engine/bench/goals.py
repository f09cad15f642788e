"""What the engine is meant to reach, judged from one run: the rows of docs/performance.md.

Each goal looks at cells of the summary; where the run did not measure them it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

from engine.bench.arms import PLAIN, Arm, Kind
from engine.bench.session import PREFILL
from engine.bench.summary import COPIES, NOVEL, Cell, Spread, Summary, split_of
from engine.bench.workloads import COPYABLE

OF_MODEL = 0.95
"""Share of the cost model's speed that speculation is to reach."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal and what was measured; `figure` is the median. `arm` and `group` name its cell."""

    goal: str
    target: str
    figure: float
    low: float
    high: float
    met: bool
    arm: str
    group: str


def verdicts(summary: Summary) -> list[Verdict]:
    """All goals that the run can judge."""
    found = [*_one_stage(summary), *_plain_split(summary), *_prefill(summary), *_speculation(summary)]
    return [*found, *_copies(summary)]


def _at_least(goal: str, target: float, spread: Spread | None, cell: Cell) -> Iterator[Verdict]:
    if spread is not None:
        met = spread.median >= target
        yield _verdict(goal, f">= {target:g}", spread, cell, met=met)


def _at_most(goal: str, target: str, limit: float, spread: Spread | None, cell: Cell) -> Iterator[Verdict]:
    if spread is not None:
        yield _verdict(goal, f"<= {target}", spread, cell, met=spread.median <= limit)


def _verdict(goal: str, target: str, spread: Spread, cell: Cell, *, met: bool) -> Verdict:
    return Verdict(goal, target, spread.median, spread.low, spread.high, met, cell.arm, cell.group)


def _everywhere(summary: Summary) -> str:
    return next((group for group in (NOVEL, *summary.groups) if group in summary.groups), "")


def _one_stage(summary: Summary) -> Iterator[Verdict]:
    one = next((arm for arm in summary.arms if arm.kind is Kind.ENGINE and arm.stages == 1), None)
    cell = summary.cell(_everywhere(summary), one)
    if cell is not None:
        yield from _at_least("one stage against llama.cpp's loop, tok/s", 0.97, cell.against_whole, cell)


def _plain_split(summary: Summary) -> Iterator[Verdict]:
    group = _everywhere(summary)
    for arm in summary.arms:
        cell = summary.cell(group, arm)
        if not arm.is_split or arm.namespaces or arm.strategy != PLAIN or cell is None:
            continue
        over = cell.overhead_ms
        if arm.rtt_ms:
            limit = arm.rtt_ms + 2 * (arm.stages - 1)
            goal = f"{arm.name}: time per token without compute, ms"
            yield from _at_most(goal, f"{arm.rtt_ms:g} + 2 a boundary", limit, over, cell)
            continue
        if cell.against_whole is not None:
            ratio = cell.against_whole
            slower = Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
            yield from _at_most(
                f"{arm.name}: time per token against the whole model", "1.15", 1.15, slower, cell
            )
        yield from _at_most(f"{arm.name}: time per token without compute, ms", "1.2", 1.2, over, cell)


def _prefill(summary: Summary) -> Iterator[Verdict]:
    split = summary.cell(PREFILL, split_of(summary.arms, PLAIN, 0.0))
    if split is not None:
        goal = "prefill of the split against the whole model"
        yield from _at_least(goal, 1.6, split.first_token_gain, split)


def _speculation(summary: Summary) -> Iterator[Verdict]:
    for rtt, group, target in (
        (20.0, "chat", 1.10),
        (20.0, "coding", 1.20),
        (100.0, _everywhere(summary), 1.6),
    ):
        cell = summary.cell(group, split_of(summary.arms, "mtp", rtt))
        if cell is not None:
            goal = f"mtp against plain, {rtt:g} ms, {group}"
            yield from _at_least(goal, target, cell.against_plain, cell)
            yield from _of_model(f"mtp against the cost model, {rtt:g} ms, {group}", cell)
    for arm in summary.arms:
        if arm.is_split and arm.strategy == "auto":
            for group in summary.groups:
                cell = summary.cell(group, arm)
                if cell is not None and group not in (PREFILL, COPIES, *COPYABLE):
                    goal = f"{arm.name} against plain, {group}"
                    yield from _at_least(goal, 0.97, cell.against_plain, cell)


def _of_model(goal: str, cell: Cell) -> Iterator[Verdict]:
    if cell.model is not None:
        yield from _at_least(goal, OF_MODEL, cell.model.of_model, cell)


def _copies(summary: Summary) -> Iterator[Verdict]:
    for group, target in (("copy", 4.0), ("rename", 2.0)):
        best = _best(summary, group, 20.0)
        if best is not None:
            arm, fastest = best
            what, where = f"best strategy ({arm.label})", f"20 ms, {group}"
            yield from _at_least(f"{what} against plain, {where}", target, fastest.against_plain, fastest)
            yield from _of_model(f"{what} against the cost model, {where}", fastest)
    for arm in summary.arms:
        cell = summary.cell("copy", arm)
        if arm.strategy == "auto" and cell is not None and cell.occupancy is not None:
            occupancy = Spread(cell.occupancy, cell.occupancy, cell.occupancy)
            yield from _at_least(f"{arm.name}: occupancy of the pipeline, copy", 0.95, occupancy, cell)


def _best(summary: Summary, group: str, rtt_ms: float) -> tuple[Arm, Cell] | None:
    found = []
    for arm in summary.arms:
        cell = summary.cell(group, arm)
        if arm.is_split and arm.rtt_ms == rtt_ms and arm.strategy != PLAIN and cell and cell.against_plain:
            found.append((cell.against_plain.median, arm, cell))
    best = max(found, key=itemgetter(0), default=None)
    return best[1:] if best is not None else None
