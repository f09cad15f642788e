"""A run's result as one JSON object and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.bench.differences import Difference
from engine.bench.goals import verdicts
from engine.bench.session import PREFILL
from engine.bench.summary import Cell, Spread, Summary, plain_of

RESULT_NAME = "result.json"  # in the folder of a run


@dataclass(frozen=True, slots=True)
class Result:
    """Everything there is to tell about a run."""

    head: dict[str, Any]  # settings and machine
    date: str
    summary: Summary
    differences: tuple[Difference, ...]
    compared: int  # answers whose tokens were compared

    def to_json(self) -> dict[str, Any]:
        """The JSON result of `skippy-engine bench`."""
        return {
            "date": self.date,
            "settings": self.head,
            "arms": [asdict(arm) | {"name": arm.name, "kind": arm.kind.value} for arm in self.summary.arms],
            "cells": [asdict(cell) for cell in self.summary.cells.values()],
            "compared": self.compared,
            "differences": [asdict(difference) for difference in self.differences],
            "goals": [asdict(verdict) for verdict in verdicts(self.summary)],
        }

    def to_markdown(self) -> str:
        """Tables for people."""
        summary = self.summary
        tables = [_group_table(summary, group) for group in summary.groups]
        parts = [
            _heading(self),
            *tables,
            _namespaces(self),
            _differences(self),
            _goals(summary),
            _missed(summary),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is right-aligned."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def _heading(result: Result) -> str:
    head = result.head
    return (
        f"Measured {result.date} on {head['processor']}, {head['cores']} cores, {head['system']}; "
        f"skippy {head['skippy']}, llama-cpp-python {head['llama-cpp-python']}, Python {head['python']}. "
        f"Model {head['model']}, {head['stages']} stages, {head['compute.threads']} thread(s) a process, "
        f"suite {head['suite']}, answers of up to {head['max_tokens']} tokens, temperature "
        f"{head['temperature']:g}, {_rounds(result.summary)} rounds after a warm-up. Each figure is the "
        "median over rounds, with the smallest and the largest."
    )


def _rounds(summary: Summary) -> str:
    """How many there were; of a run that is not complete, the fewest and the most."""
    counts = sorted({cell.rounds for cell in summary.cells.values()})
    return "no" if not counts else "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


_COLUMNS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("tok/s", lambda cell: spread_text(cell.tokens_per_second, 1)),
    ("x llama.cpp", lambda cell: spread_text(cell.against_whole, 2)),
    ("x plain", lambda cell: spread_text(cell.against_plain, 2)),
    ("of the model", lambda cell: spread_text(cell.model.of_model if cell.model else None, 2)),
    ("ms a token", lambda cell: _number(cell.token_ms.median if cell.token_ms else None, 2)),
    ("compute ms a window", lambda cell: _number(cell.compute_ms or None, 2)),
    ("the rest, ms", lambda cell: spread_text(cell.overhead_ms, 2)),
    ("drafts right", lambda cell: "" if cell.acceptance is None else f"{cell.acceptance:.0%}"),
    ("tokens a window", lambda cell: _number(cell.tokens_per_window, 2)),
    ("mean width", lambda cell: _number(cell.mean_width, 1)),
    ("in flight", lambda cell: str(cell.in_flight_max) if cell.in_flight_max > 1 else ""),
    ("occupancy", lambda cell: _number(cell.occupancy, 2)),
)


def _group_table(summary: Summary, group: str) -> str:
    cells = [cell for arm in summary.arms if (cell := summary.cell(group, arm)) is not None]
    if group == PREFILL:
        heads = ["arm", "first token, ms", "x llama.cpp"]
        rows = [
            [cell.arm, spread_text(cell.first_token_ms, 0), spread_text(cell.first_token_gain, 2)]
            for cell in cells
        ]
    else:
        columns = [(name, [show(cell) for cell in cells]) for name, show in _COLUMNS]
        told = [(name, values) for name, values in columns if any(values)]
        heads = ["arm", *(name for name, _ in told)]
        rows = [[cell.arm, *(values[at] for _, values in told)] for at, cell in enumerate(cells)]
    return f"### {group[0].upper()}{group[1:]}\n\n{table(heads, rows)}"


def _namespaces(result: Result) -> str:
    """Real delay between network namespaces beside emulated delay."""
    rows, summary = [], result.summary
    for arm in summary.arms:
        emulated = plain_of(arm, summary.arms) if arm.namespaces else None
        for group in summary.groups:
            cell, other = summary.cell(group, arm), summary.cell(group, emulated)
            if cell is not None and other is not None and cell.against_plain is not None:
                rests = [spread_text(one.overhead_ms, 2) for one in (other, cell)]
                rows.append([f"{arm.rtt_ms:g} ms", group, *rests, spread_text(cell.against_plain, 3)])
    if not rows:
        return ""
    heads = [
        "round trip",
        "text",
        "emulated: the rest, ms",
        "packets: the rest, ms",
        "speed, packets / emulated",
    ]
    how = f"Packets are delayed by: {result.head['netns']}."
    return f"### Network namespaces against emulated delay\n\n{how}\n\n{table(heads, rows)}"


def _differences(result: Result) -> str:
    if not result.differences:
        return f"### Tokens\n\nAll {result.compared} answers that were compared have plain decoding's tokens."
    rows = [
        [one.arm, one.reference, one.workload, f"{one.position} (turn {one.turn + 1})", f"{one.gap:.3g}"]
        for one in result.differences
    ]
    heads = ["arm", "differs from", "workload", "at token", "gap of the two likeliest logits"]
    compared = f"{result.compared} answers were compared with plain decoding's; the first difference of each:"
    return f"### Tokens\n\n{compared}\n\n{table(heads, rows)}"


def _goals(summary: Summary) -> str:
    rows = [
        [
            one.goal,
            one.target,
            f"{one.figure:.3g} ({one.low:.3g} - {one.high:.3g})",
            "yes" if one.met else "no",
        ]
        for one in verdicts(summary)
    ]
    return f"### Goals\n\n{table(['goal', 'target', 'measured', 'met'], rows)}" if rows else ""


def _missed(summary: Summary) -> str:
    """Speculative goals that were missed, and what the cost model says can be reached with those windows."""
    rows = []
    for verdict in verdicts(summary):
        cell = summary.cells[verdict.group, verdict.arm]
        model = cell.model
        if verdict.met or model is None:
            continue
        times = (model.plain_compute_ms, model.rest_ms, model.compute_ms, model.draft_ms, model.slowest_ms)
        rows.append(
            [
                verdict.goal,
                verdict.target,
                f"{verdict.figure:.3g}",
                spread_text(model.against_plain, 2),
                _number(cell.tokens_per_window, 2),
                *(f"{ms:.2f}" for ms in times),
            ]
        )
    if not rows:
        return ""
    heads = ["goal", "target", "measured", "the model's most, x plain", "tokens a window"]
    heads += ["C(1), ms", "R + b, ms", "C of a window, ms", "D of a window, ms", "slowest stage, ms"]
    return f"### What the cost model says of the goals that were missed\n\n{table(heads, rows)}"


def spread_text(value: Spread | None, digits: int) -> str:
    """The median, and the range if there is one; nothing for None."""
    if value is None:
        return ""
    median, low, high = (f"{number:.{digits}f}" for number in (value.median, value.low, value.high))
    return f"{median} ({low} - {high})" if low != high else median


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
