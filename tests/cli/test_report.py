"""The figures of an answer, in the REPL and in the app: both are made from its JSON result."""

from __future__ import annotations

from typing import Any

import pytest

from engine.cli.report import stats_lines
from engine.events import Event, Notice, StageState
from skippy_tui.report import stats_text

STAGE = {
    "index": 1,
    "layers": [15, 30],
    "where": "den",
    "compute_ms_p50": 12.0,
    "compute_ms_total": 3620.0,
    "rtt_ms": 20.0,
}


def told(**result: Any) -> list[str]:
    """What the REPL says, and what the app says."""
    return ["\n".join(stats_lines(result)), str(stats_text(result))]


def test_a_stage_tells_its_time_for_a_window_and_all_that_it_computed_drafting_included() -> None:
    for text in told(stages=[STAGE]):
        assert "12.0 ms a window" in text
        assert "computed for 3.62 s" in text
        assert "round trip 20.0 ms" in text


def test_the_repl_shares_all_tokens_among_all_windows() -> None:
    """A window of one draft is not stale only if that draft was right: there are never fewer than 1."""
    counts = {
        "proposed": 63,
        "accepted": 26,
        "acceptance_rate": 26 / 63,
        "windows": 96,
        "by_source": {"mtp": {"proposed": 63, "accepted": 26}, "ngram": {"proposed": 0, "accepted": 0}},
        "width": {"min": 0, "max": 1, "mean": 0.7},
    }
    timings = {"prompt_n": 9, "predicted_n": 60, "prompt_ms": 1.0, "predicted_ms": 1.0, "ttft_ms": 1.0}
    (line,) = (
        line
        for line in stats_lines({"strategy": "auto", "speculative": counts, "timings": timings})
        if line.startswith("spec")
    )
    assert line.endswith(
        "auto: 26 of 63 drafts right (41%; mtp 26/63), 96 windows of 0-1 drafts, 0.6 tokens each"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Notice(level="warning", code="c", message="one machine is faster", hint="--stages 1"),
            "one machine is faster; --stages 1",
        ),
        (Notice(level="warning", code="c", message="the lane was slow"), "the lane was slow"),
        (
            StageState(
                index=1, state="restarting", layers=(15, 30), where="den", reason="killed by signal 9"
            ),
            "stage 1 restarting: killed by signal 9",
        ),
    ],
)
def test_what_happened_during_an_answer_is_told_in_words(event: Event, line: str) -> None:
    for text in told(events=[event.to_dict()]):
        assert text.startswith("note ")
        assert text.endswith(f" {line}")
