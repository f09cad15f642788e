"""What the engine is meant to reach, judged from one run: the rows of docs/performance.md.

Each goal looks at cells of the summary; where the run did not measure them it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.bench.arms import PLAIN, Arm, Kind
from engine.bench.session import PREFILL
from engine.bench.summary import COPIES, NOVEL, Spread, Summary, split_of
from engine.bench.workloads import COPYABLE


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal and what was measured; `figure` is the median."""

    goal: str
    target: str
    figure: float
    low: float
    high: float
    met: bool


def verdicts(summary: Summary) -> list[Verdict]:
    """All goals that the run can judge."""
    found = [*_one_stage(summary), *_plain_split(summary), *_prefill(summary), *_speculation(summary)]
    return [*found, *_copies(summary)]


def _at_least(goal: str, target: float, spread: Spread | None) -> Iterator[Verdict]:
    if spread is not None:
        median = spread.median
        yield Verdict(goal, f">= {target:g}", median, spread.low, spread.high, median >= target)


def _at_most(goal: str, target: str, limit: float, spread: Spread | None) -> Iterator[Verdict]:
    if spread is not None:
        median = spread.median
        yield Verdict(goal, f"<= {target}", median, spread.low, spread.high, median <= limit)


def _everywhere(summary: Summary) -> str:
    return next((group for group in (NOVEL, *summary.groups) if group in summary.groups), "")


def _one_stage(summary: Summary) -> Iterator[Verdict]:
    one = next((arm for arm in summary.arms if arm.kind is Kind.ENGINE and arm.stages == 1), None)
    cell = summary.cell(_everywhere(summary), one)
    if cell is not None:
        yield from _at_least("one stage against llama.cpp's loop, tok/s", 0.97, cell.against_whole)


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
            yield from _at_most(goal, f"{arm.rtt_ms:g} + 2 a boundary", limit, over)
            continue
        if cell.against_whole is not None:
            ratio = cell.against_whole
            slower = Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
            yield from _at_most(f"{arm.name}: time per token against the whole model", "1.15", 1.15, slower)
        yield from _at_most(f"{arm.name}: time per token without compute, ms", "1.2", 1.2, over)


def _prefill(summary: Summary) -> Iterator[Verdict]:
    split = summary.cell(PREFILL, split_of(summary.arms, PLAIN, 0.0))
    if split is not None:
        goal = "prefill of the split against the whole model"
        yield from _at_least(goal, 1.6, split.first_token_gain)


def _speculation(summary: Summary) -> Iterator[Verdict]:
    for rtt, group, target in (
        (20.0, "chat", 1.10),
        (20.0, "coding", 1.20),
        (100.0, _everywhere(summary), 1.6),
    ):
        cell = summary.cell(group, split_of(summary.arms, "mtp", rtt))
        if cell is not None:
            yield from _at_least(f"mtp against plain, {rtt:g} ms, {group}", target, cell.against_plain)
    for arm in summary.arms:
        if arm.is_split and arm.strategy == "auto":
            for group in summary.groups:
                cell = summary.cell(group, arm)
                if cell is not None and group not in (PREFILL, COPIES, *COPYABLE):
                    yield from _at_least(f"{arm.name} against plain, {group}", 0.97, cell.against_plain)


def _copies(summary: Summary) -> Iterator[Verdict]:
    for group, target in (("copy", 4.0), ("rename", 2.0)):
        best = _best(summary, group, 20.0)
        if best is not None:
            arm, spread = best
            yield from _at_least(f"best strategy ({arm.label}) against plain, 20 ms, {group}", target, spread)
    for arm in summary.arms:
        cell = summary.cell("copy", arm)
        if arm.strategy == "auto" and cell is not None and cell.occupancy is not None:
            occupancy = Spread(cell.occupancy, cell.occupancy, cell.occupancy)
            yield from _at_least(f"{arm.name}: occupancy of the pipeline, copy", 0.95, occupancy)


def _best(summary: Summary, group: str, rtt_ms: float) -> tuple[Arm, Spread] | None:
    found = []
    for arm in summary.arms:
        cell = summary.cell(group, arm)
        if arm.is_split and arm.rtt_ms == rtt_ms and arm.strategy != PLAIN and cell and cell.against_plain:
            found.append((arm, cell.against_plain))
    return max(found, key=lambda pair: pair[1].median, default=None)
