"""Two runs of the bench beside each other: whether each ratio of one lies within the spread of the other.

Speeds are told but not judged: they are the machine's. Ratios are taken within a round, where both arms met
the same machine, and so have to come out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.bench.report import RESULT_NAME, spread_text, table
from engine.bench.session import PREFILL
from engine.bench.summary import Cell, Spread
from engine.config.plain import from_plain
from engine.errors import UsageError

_RATIOS: tuple[tuple[str, Callable[[Cell], Spread | None]], ...] = (
    ("x llama.cpp", lambda cell: cell.against_whole),
    ("x plain", lambda cell: cell.against_plain),
    ("of the model", lambda cell: cell.model.of_model if cell.model else None),
    ("first token, x llama.cpp", lambda cell: cell.first_token_gain if cell.group == PREFILL else None),
)

_ITSELF = Spread(1.0, 1.0, 1.0)  # the ratio of an arm to itself


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    folder: Path
    date: str
    settings: Mapping[str, Any]
    cells: Mapping[tuple[str, str], Cell]  # by group and arm

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The result that a run has left in its folder. Raises UsageError."""
        path = folder / RESULT_NAME
        try:
            data = orjson.loads(path.read_bytes())
            cells = [from_plain(Cell, cell, f"{path}: cell") for cell in data["cells"]]
            return cls(folder, data["date"], data["settings"], {(one.group, one.arm): one for one in cells})
        except OSError as error:
            hint = "a run that was not finished tells what it has with --report"
            raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no result of skippy-engine bench") from error


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio of both runs. They agree if their ranges overlap."""

    what: str
    first: Spread
    second: Spread
    agree: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """An arm in a group of workloads, in both runs."""

    group: str
    arm: str
    tokens_per_second: tuple[Spread | None, Spread | None]
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both runs measured."""

    runs: tuple[Run, Run]
    pairs: tuple[Pair, ...]

    @property
    def ratios(self) -> list[tuple[Pair, Ratio]]:
        return [(pair, ratio) for pair in self.pairs for ratio in pair.ratios]

    @property
    def apart(self) -> list[tuple[Pair, Ratio]]:
        """The ratios whose ranges do not overlap."""
        return [(pair, ratio) for pair, ratio in self.ratios if not ratio.agree]

    @property
    def other_settings(self) -> dict[str, tuple[Any, Any]]:
        """Settings and parts of the machine that are not the same, by name."""
        ours, theirs = (run.settings for run in self.runs)
        names = dict.fromkeys((*ours, *theirs))
        both = {name: (ours.get(name), theirs.get(name)) for name in names}
        return {name: values for name, values in both.items() if values[0] != values[1]}

    def to_json(self) -> dict[str, Any]:
        """The JSON result of `skippy-engine bench --compare`."""
        return {
            "runs": [{"folder": str(run.folder), "date": run.date} for run in self.runs],
            "other_settings": self.other_settings,
            "pairs": [asdict(pair) for pair in self.pairs],
            "ratios": len(self.ratios),
            "agree": len(self.ratios) - len(self.apart),
        }

    def to_markdown(self) -> str:
        """Tables for people, and a closing line."""
        first, second = self.runs
        parts = [f"A is {first.folder}, measured {first.date}; B is {second.folder}, measured {second.date}."]
        if self.other_settings:
            told = (f"{name} {a!r} and {b!r}" for name, (a, b) in self.other_settings.items())
            parts.append(f"Not the same in both: {', '.join(told)}.")
        groups = dict.fromkeys(pair.group for pair in self.pairs)
        parts += [_table(group, [pair for pair in self.pairs if pair.group == group]) for group in groups]
        return "\n\n".join([*parts, self.verdict()]) + "\n"

    def verdict(self) -> str:
        """The closing line."""
        count, apart = len(self.ratios), self.apart
        if not count:
            return "There is no ratio that both runs have measured."
        if not apart:
            return f"The runs agree: the ranges of all ratios overlap ({count})."
        told = (f"{pair.group}, {pair.arm}: {ratio.what}" for pair, ratio in apart)
        return (
            f"The ranges of {count - len(apart)} of {count} ratios overlap, not those of: {'; '.join(told)}."
        )


def compare(first: Run, second: Run) -> Comparison:
    """All arms and groups that both runs have."""
    both = [(cell, second.cells[key]) for key, cell in first.cells.items() if key in second.cells]
    return Comparison((first, second), tuple(_pair(ours, theirs) for ours, theirs in both))


def _pair(ours: Cell, theirs: Cell) -> Pair:
    ratios = []
    for what, of in _RATIOS:
        first, second = of(ours), of(theirs)
        if first is not None and second is not None and not first == second == _ITSELF:
            agree = first.low <= second.high and second.low <= first.high
            ratios.append(Ratio(what, first, second, agree))
    speeds = ours.tokens_per_second, theirs.tokens_per_second
    return Pair(ours.group, ours.arm, speeds, tuple(ratios))


def _table(group: str, pairs: Sequence[Pair]) -> str:
    whats = [
        what for what, _ in _RATIOS if any(ratio.what == what for pair in pairs for ratio in pair.ratios)
    ]
    heads = ["arm", "tok/s, A", "B", *(head for what in whats for head in (f"{what}, A", "B")), "agree"]
    rows = []
    for pair in pairs:
        found = {ratio.what: ratio for ratio in pair.ratios}
        shown = [spread_text(speed, 1) for speed in pair.tokens_per_second]
        for what in whats:
            ratio = found.get(what)
            both = (ratio.first, ratio.second) if ratio else (None, None)
            shown += [spread_text(spread, 2) for spread in both]
        agree = "" if not pair.ratios else "yes" if all(ratio.agree for ratio in pair.ratios) else "no"
        rows.append([pair.arm, *shown, agree])
    return f"### {group[0].upper()}{group[1:]}\n\n{table(heads, rows)}"
