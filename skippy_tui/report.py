"""All figures of an answer as text, from its JSON result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from textual.content import Content

from engine.cli.report import incident_line
from engine.client.sanitize import one_line
from skippy_tui.paint import ORIGIN_NAMES, ordinal, sparkline

LABEL = 13


def stats_text(result: Mapping[str, Any]) -> Content:
    """Aligned lines; what the result does not hold is left out."""
    rows = [
        *_timing_rows(result),
        *_speculation_rows(result),
        *_stage_rows(result.get("stages") or ()),
        *(("note", one_line(incident_line(event))) for event in result.get("events") or ()),
    ]
    return Content("\n").join(
        Content.assemble((label.ljust(LABEL), "$foreground-muted"), text) for label, text in rows if text
    )


def _timing_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    timings = result.get("timings") or {}
    if not timings:
        return []
    first = timings.get("ttft_ms")
    prompt = f"{timings['prompt_n']} prompt ({timings.get('prompt_reused_n', 0)} reused)"
    rows = [
        ("tokens", f"{prompt}, {timings['predicted_n']} answer"),
        ("ended", str(result.get("finish_reason", ""))),
        (
            "prompt",
            f"{timings.get('prompt_ms', 0):.0f} ms"
            + (f", first token after {first:.0f} ms" if first else ""),
        ),
    ]
    if timings.get("predicted_per_second"):
        rows.append(("speed", f"{timings['predicted_per_second']:.1f} tok/s"))
    if timings.get("tpot_ms_p50"):
        rows.append(
            ("per token", f"p50 {timings['tpot_ms_p50']:.1f} ms, p95 {timings.get('tpot_ms_p95', 0):.1f} ms")
        )
    return rows


def _speculation_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = result.get("speculative") or {}
    rows = [("strategy", f"{result.get('strategy', '')}{', exact' if result.get('exact') else ''}")]
    if not counts.get("proposed"):
        return rows
    rows.append(
        ("drafts", f"{counts['accepted']} of {counts['proposed']} right ({counts['acceptance_rate']:.0%})")
    )
    for source, count in (counts.get("by_source") or {}).items():
        if count["proposed"]:
            share = (
                f"{count['accepted']} of {count['proposed']} ({count['accepted'] / count['proposed']:.0%})"
            )
            rows.append((f"  {ORIGIN_NAMES.get(source, source)}", share))
    proposed, accepted = counts.get("proposed_per_position") or (), counts.get("accepted_per_position") or ()
    if proposed:
        rates = [a / p if p else None for a, p in zip(accepted, proposed, strict=False)]
        places = "1st" if len(rates) == 1 else f"1st to {ordinal(len(rates))}"
        rows.append(("  positions", f"{sparkline(rates, len(rates), top=1.0)}  {places}"))
    width, pipeline = counts.get("width") or {}, counts.get("pipeline") or {}
    if width:
        drafts = f"{width['min']} to {width['max']} drafts, {width['mean']:.1f} on average"
        rows.append(("windows", f"{counts['windows']}, {drafts}"))
    if pipeline:
        flight = (
            f"{pipeline.get('in_flight_mean', 0):.1f} on average, {pipeline.get('in_flight_max', 0)} at most"
        )
        rows.append(("in flight", flight))
        rows.append(
            ("stale", f"{pipeline.get('stale_windows', 0)} windows, {pipeline.get('stale_ms', 0):.0f} ms")
        )
    return rows


def _stage_rows(stages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for stage in stages:
        first, end = stage["layers"]
        text = f"layers {first}:{end}, {one_line(stage['where'])}"
        if stage.get("compute_ms_p50"):
            text += (
                f", {stage['compute_ms_p50']:.1f} ms a window, {stage.get('wait_ms_p50') or 0:.1f} ms waiting"
            )
        if stage.get("compute_ms_total"):
            text += f", computed for {stage['compute_ms_total'] / 1000:.2f} s in all"
        if stage.get("rtt_ms"):
            text += f", round trip {stage['rtt_ms']:.1f} ms"
        if stage.get("restarts"):
            text += f", restarted {stage['restarts']}×"
        rows.append((f"stage {stage['index']}", text))
    return rows
