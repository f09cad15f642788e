"""The block of figures after an answer, from the JSON result of docs/interfaces.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.events import NodeState

_SOURCES = {
    "running": "served them already",
    "cache": "from its cache",
    "model": "cut from a model of its own",
}


def stats_lines(result: Mapping[str, Any], nodes: Iterable[NodeState] = ()) -> list[str]:
    """A few aligned lines; what the result does not hold is left out."""
    timings = result.get("timings", {})
    rows = [
        ("tokens", _tokens(timings, result.get("finish_reason", ""))),
        ("time", _time(timings)),
        ("speed", _speed(timings)),
        ("reuse", _reuse(timings)),
        ("spec", _speculation(result.get("strategy", ""), result.get("speculative", {}), timings)),
        *(("stage", _stage(stage)) for stage in result.get("stages", [])),
        *(("node", node_line(node)) for node in nodes),
        *(("note", incident_line(event)) for event in result.get("events", [])),
    ]
    return [f"{name:<7} {text}" for name, text in rows if text]


def incident_line(event: Mapping[str, Any]) -> str:
    """What an event of the JSON result tells: the text of a notice, or that a stage was started again."""
    if event["kind"] == "stage":
        reason = f": {event['reason']}" if event.get("reason") else ""
        return f"stage {event['index']} {event['state']}{reason}"
    return f"{event['message']}; {event['hint']}" if event.get("hint") else str(event["message"])


def node_line(node: NodeState) -> str:
    """`den, layers 15:30: receiving 66% of 128 MB`."""
    layers = f", layers {node.layers[0]}:{node.layers[1]}" if node.layers else ""
    return f"{node.name}{layers}: {node_step(node)}"


def node_step(node: NodeState) -> str:
    """What is being done with a node, and how much of it."""
    match node.state:
        case "left-out":
            return f"left out: {node.detail}"
        case "described":
            return node.detail
        case "probing":
            return f"probing the way to {node.detail}"
        case "ready":
            source = _SOURCES.get(node.detail, f"received {_megabytes(node.bytes_sent)}")
            return f"ready, {source}"
    progress = f" {node.done / node.total:.0%} of {_megabytes(node.total)}" if node.total else ""
    return f"{node.state}{progress}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _tokens(timings: Mapping[str, Any], finish_reason: str) -> str:
    if not timings:
        return ""
    return f"{timings['prompt_n']} prompt, {timings['predicted_n']} answer ({finish_reason})"


def _time(timings: Mapping[str, Any]) -> str:
    if not timings:
        return ""
    first, decode = timings["ttft_ms"], timings["predicted_ms"]
    shown_first = "" if first is None else f", first token after {_seconds(first)}"
    return f"prefill {_seconds(timings['prompt_ms'])}, decode {_seconds(decode)}{shown_first}"


def _speed(timings: Mapping[str, Any]) -> str:
    rate = timings.get("predicted_per_second")
    if not rate:
        return ""
    middle, slow = timings.get("tpot_ms_p50"), timings.get("tpot_ms_p95")
    per_token = f", a token in {middle:.1f} ms (p95 {slow:.1f})" if middle and slow else ""
    return f"{rate:.1f} tok/s{per_token}"


def _reuse(timings: Mapping[str, Any]) -> str:
    reused = timings.get("prompt_reused_n")
    return f"{reused} of {timings['prompt_n']} prompt tokens were in the caches" if reused else ""


def _speculation(strategy: str, counts: Mapping[str, Any], timings: Mapping[str, Any]) -> str:
    if not counts or not counts.get("proposed"):
        return strategy
    sources = ", ".join(
        f"{source} {count['accepted']}/{count['proposed']}"
        for source, count in counts.get("by_source", {}).items()
        if count["proposed"]
    )
    width = counts.get("width", {})
    tokens = timings.get("predicted_n", 0) / counts["windows"]
    return (
        f"{strategy}: {counts['accepted']} of {counts['proposed']} drafts right "
        f"({counts['acceptance_rate']:.0%}; {sources}), {counts['windows']} windows of "
        f"{width.get('min')}-{width.get('max')} drafts, {tokens:.1f} tokens each"
    )


def _stage(stage: Mapping[str, Any]) -> str:
    first, end = stage["layers"]
    middle, hop = stage.get("compute_ms_p50"), stage.get("rtt_ms")
    compute = f", {middle:.1f} ms a window" if middle else ""
    total = f", computed for {_seconds(stage['compute_ms_total'])}" if stage.get("compute_ms_total") else ""
    link = f", round trip {hop:.1f} ms" if hop else ""
    restarts = f", restarted {stage['restarts']}x" if stage.get("restarts") else ""
    return f"{stage['index']} layers {first}:{end} {stage['where']}{compute}{total}{link}{restarts}"


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s"
