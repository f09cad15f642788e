"""Figures from measurements: medians over rounds with their spread, and ratios between arms of one round.

A round's speed in a category is all its tokens over all its time, so what varies between rounds is the
machine and not the text. Ratios are taken within a round, where both arms met the same machine.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.bench.arms import PLAIN, Arm, Kind
from engine.bench.measurement import Measurement, Turn
from engine.bench.model import Answers, Modelled, modelled
from engine.bench.session import PREFILL
from engine.bench.windows import unpacked
from engine.bench.workloads import COPYABLE

NOVEL = "all novel text"
COPIES = "all copyable text"


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the smallest and the largest value, over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without values."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found)) if found else None


@dataclass(frozen=True, slots=True)
class Model:
    """What the cost model says of the windows that an arm has sent (`engine.bench.model`). Milliseconds, of
    windows as they were sent: medians over rounds."""

    token_ms: float
    of_model: Spread  # measured speed over the model's
    against_plain: Spread  # the model's speed over that of plain decoding
    plain_compute_ms: float  # C(1)
    rest_ms: float  # R + b
    compute_ms: float
    draft_ms: float
    slowest_ms: float  # compute and drafting of the stage where they are most


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm in one group of workloads (a category, or several). Times are milliseconds."""

    arm: str
    group: str
    rounds: int
    tokens_per_second: Spread | None  # None where nothing was decoded (prefill)
    token_ms: Spread | None
    first_token_ms: Spread | None
    against_whole: Spread | None  # speed over that of llama.cpp's plain loop with one thread
    against_plain: Spread | None  # speed over that of the plain split with the same delay
    first_token_gain: Spread | None  # time to the first token of that loop over this arm's
    compute_ms: float  # of all stages, per window; 0 where it is not known
    overhead_ms: Spread | None  # time per token without compute; plain decoding only, a window is a token
    acceptance: float | None
    tokens_per_window: float | None
    mean_width: float | None
    occupancy: float | None  # where windows followed each other without waiting
    in_flight_max: int
    model: Model | None  # of a strategy where there is plain decoding over the same stages


@dataclass(frozen=True, slots=True)
class Summary:
    """All cells, by group and then by arm in the order of the run."""

    groups: tuple[str, ...]
    arms: tuple[Arm, ...]
    cells: dict[tuple[str, str], Cell]

    def cell(self, group: str, arm: Arm | None) -> Cell | None:
        return self.cells.get((group, arm.name)) if arm is not None else None


def summarize(arms: Sequence[Arm], measurements: Sequence[Measurement]) -> Summary:
    """Sum measurements up. Rounds that an arm has not finished count for what they hold."""
    groups = _groups(measurements)
    cells: dict[tuple[str, str], Cell] = {}
    for group, categories in groups.items():
        rounds: dict[str, dict[int, list[Turn]]] = defaultdict(lambda: defaultdict(list))
        for one in measurements:
            if one.category in categories:
                rounds[one.arm][one.round].extend(one.turns)
        for arm in arms:
            if arm.name in rounds:
                cells[group, arm.name] = _cell(group, arm, arms, rounds)
    return Summary(tuple(groups), tuple(arms), cells)


def _groups(measurements: Sequence[Measurement]) -> dict[str, set[str]]:
    """The categories of each group; groups of several only where there are several."""
    categories = list(dict.fromkeys(one.category for one in measurements))
    groups = {category: {category} for category in categories}
    asked = [category for category in categories if category != PREFILL]
    for name, members in (
        (NOVEL, {category for category in asked if category not in COPYABLE}),
        (COPIES, {category for category in asked if category in COPYABLE}),
    ):
        if len(members) > 1:
            groups[name] = members
    return groups


Rounds = dict[str, dict[int, list[Turn]]]
"""By name of arm and number of round."""


def _cell(group: str, arm: Arm, arms: Sequence[Arm], rounds: Rounds) -> Cell:
    own = rounds[arm.name]
    speeds = {number: speed for number, turns in own.items() if (speed := _speed(turns))}
    turns = [turn for some in own.values() for turn in some]
    counters = [turn.speculative for turn in turns if turn.speculative]
    proposed = sum(counter["proposed"] for counter in counters)
    windows = sum(turn.window_count for turn in turns)
    pipelines = [counter["pipeline"] for counter in counters if "pipeline" in counter]
    widths = [counter["width"]["mean"] for counter in counters if proposed and "width" in counter]
    streamed = [pipeline["occupancy"] for pipeline in pipelines if pipeline["in_flight_max"] > 1]
    return Cell(
        arm=arm.name,
        group=group,
        rounds=len(own),
        tokens_per_second=Spread.of(speeds.values()),
        token_ms=Spread.of(1000 / speed for speed in speeds.values()),
        first_token_ms=Spread.of(map(_first_token_ms, own.values())),
        against_whole=_ratio(speeds, whole_of(arms), rounds),
        against_plain=_ratio(speeds, plain_of(arm, arms), rounds) if _is_compared(arm) else None,
        first_token_gain=_first_token_gain(own, whole_of(arms), rounds),
        compute_ms=statistics.mean(turn.compute_ms for turn in turns),
        overhead_ms=_overhead(own, speeds) if arm.kind is Kind.ENGINE and arm.strategy == PLAIN else None,
        acceptance=sum(counter["accepted"] for counter in counters) / proposed if proposed else None,
        tokens_per_window=sum(turn.decoded for turn in turns) / windows if windows else None,
        mean_width=statistics.mean(width for width in widths if width is not None) if any(widths) else None,
        occupancy=statistics.mean(streamed) if streamed else None,
        in_flight_max=max((pipeline["in_flight_max"] for pipeline in pipelines), default=1),
        model=_model(own, arm, arms, rounds),
    )


def _is_compared(arm: Arm) -> bool:
    """Whether there is plain decoding over as many stages to compare an arm with."""
    return arm.kind is Kind.RPC or (arm.kind is Kind.ENGINE and (arm.stages > 1 or arm.strategy != PLAIN))


def _speed(turns: Sequence[Turn]) -> float:
    """Tokens per second of one round; 0 if none were decoded."""
    milliseconds = sum(turn.decode_ms for turn in turns)
    return sum(turn.decoded for turn in turns) * 1000 / milliseconds if milliseconds else 0.0


def _ratio(speeds: dict[int, float], other: Arm | None, rounds: Rounds) -> Spread | None:
    if other is None or other.name not in rounds:
        return None
    theirs = {number: _speed(turns) for number, turns in rounds[other.name].items()}
    return Spread.of(speed / theirs[number] for number, speed in speeds.items() if theirs.get(number))


def _first_token_ms(turns: Sequence[Turn]) -> float:
    return statistics.mean(turn.first_token_ms for turn in turns)


def _first_token_gain(own: dict[int, list[Turn]], other: Arm | None, rounds: Rounds) -> Spread | None:
    if other is None or other.name not in rounds:
        return None
    theirs = rounds[other.name]
    return Spread.of(
        _first_token_ms(theirs[number]) / _first_token_ms(turns)
        for number, turns in own.items()
        if number in theirs
    )


def _overhead(own: dict[int, list[Turn]], speeds: dict[int, float]) -> Spread | None:
    return Spread.of(
        1000 / speed - statistics.mean(turn.compute_ms for turn in own[number])
        for number, speed in speeds.items()
    )


def _model(own: dict[int, list[Turn]], arm: Arm, arms: Sequence[Arm], rounds: Rounds) -> Model | None:
    """None for plain decoding itself, and for a draft model, whose time is no part of the cost model."""
    plain = plain_of(arm, arms)
    if arm.kind is not Kind.ENGINE or arm.strategy in (PLAIN, "draft") or plain is None:
        return None
    theirs = rounds.get(plain.name, {})
    pairs = [(_answers(turns), _answers(theirs[number])) for number, turns in own.items() if number in theirs]
    found = [one for ours, other in pairs if (one := modelled(ours, other, arm.stages)) is not None]
    of_model = Spread.of(one.of_model for one in found)
    against_plain = Spread.of(one.against_plain for one in found)
    if of_model is None or against_plain is None:
        return None
    return Model(
        token_ms=_median(found, lambda one: one.token_ms),
        of_model=of_model,
        against_plain=against_plain,
        plain_compute_ms=_median(found, lambda one: one.plain_compute_ms),
        rest_ms=_median(found, lambda one: one.rest_ms),
        compute_ms=_median(found, lambda one: one.compute_ms),
        draft_ms=_median(found, lambda one: one.draft_ms),
        slowest_ms=_median(found, lambda one: one.slowest_ms),
    )


def _answers(turns: Sequence[Turn]) -> Answers:
    return Answers(
        windows=tuple(unpacked(turn.windows) for turn in turns),
        tokens=sum(turn.decoded for turn in turns),
        decode_ms=sum(turn.decode_ms for turn in turns),
    )


def _median(found: Sequence[Modelled], of: Callable[[Modelled], float]) -> float:
    return statistics.median(map(of, found))


def whole_of(arms: Sequence[Arm]) -> Arm | None:
    """llama.cpp's plain loop with one thread."""
    return _first(arms, lambda arm: arm.kind is Kind.WHOLE and arm.threads == 1)


def plain_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Plain decoding over the same stages with the same delay, emulated."""
    return _first(
        arms,
        lambda other: (
            other.kind is Kind.ENGINE
            and not other.namespaces
            and other.strategy == PLAIN
            and (other.stages, other.rtt_ms) == (arm.stages, arm.rtt_ms)
        ),
    )


def split_of(arms: Sequence[Arm], strategy: str, rtt_ms: float) -> Arm | None:
    """The split with a strategy and an emulated delay."""
    return _first(
        arms,
        lambda arm: arm.is_split and not arm.namespaces and arm.strategy == strategy and arm.rtt_ms == rtt_ms,
    )


def _first(arms: Sequence[Arm], wanted: Callable[[Arm], bool]) -> Arm | None:
    return next((arm for arm in arms if wanted(arm)), None)
