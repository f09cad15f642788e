"""Figures, goals, tables and plots made of measurements."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest

from engine.bench.goals import verdicts
from engine.bench.plots import svg, terminal
from engine.bench.report import Result
from engine.bench.session import PREFILL
from engine.bench.summary import COPIES, NOVEL, Spread, summarize
from tests.bench.samples import ONE_STAGE, WHOLE, measured, split

PLAIN_20, AUTO_20 = split(rtt_ms=20.0), split("auto", 20.0)


def test_figures_are_medians_over_rounds_with_their_spread() -> None:
    found = [measured(WHOLE, ms, round=number) for number, ms in enumerate((10.0, 20.0, 12.5))]
    cell = summarize([WHOLE], found).cells["chat", WHOLE.name]
    assert cell.tokens_per_second == Spread(80.0, 50.0, 100.0)
    assert cell.token_ms == Spread(12.5, 10.0, 20.0)
    assert cell.rounds == 3


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was half as fast in the second round, for both."""
    found = [
        measured(WHOLE, 10.0),
        measured(ONE_STAGE, 11.0),
        measured(WHOLE, 20.0, round=1),
        measured(ONE_STAGE, 22.0, round=1),
    ]
    ratio = summarize([WHOLE, ONE_STAGE], found).cells["chat", ONE_STAGE.name].against_whole
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((10 / 11,) * 3)


def test_a_split_is_compared_with_the_plain_one_at_its_own_delay() -> None:
    arms = [split(), PLAIN_20, AUTO_20]
    found = [measured(split(), 10.0), measured(PLAIN_20, 30.0), measured(AUTO_20, 15.0)]
    cells = summarize(arms, found).cells
    assert cells["chat", AUTO_20.name].against_plain == Spread(2.0, 2.0, 2.0)
    assert cells["chat", AUTO_20.name].against_whole is None


def test_time_without_compute_is_that_of_the_same_round() -> None:
    found = [
        measured(PLAIN_20, 31.0, compute_ms=10.0),
        measured(PLAIN_20, 43.0, round=1, compute_ms=20.0),
    ]
    cell = summarize([PLAIN_20], found).cells["chat", PLAIN_20.name]
    assert cell.overhead_ms == Spread(22.0, 21.0, 23.0)


def test_counters_are_added_up_over_answers() -> None:
    def counters(proposed: int, accepted: int, occupancy: float) -> dict[str, object]:
        pipeline = {"in_flight_max": 4, "occupancy": occupancy}
        return {
            "windows": 2,
            "proposed": proposed,
            "accepted": accepted,
            "width": {"mean": 3.0},
            "pipeline": pipeline,
        }

    found = [
        measured(AUTO_20, 10.0, speculative=counters(10, 9, 1.0)),
        measured(AUTO_20, 10.0, round=1, speculative=counters(30, 11, 0.5)),
    ]
    cell = summarize([AUTO_20], found).cells["chat", AUTO_20.name]
    assert cell.acceptance == 0.5
    assert cell.tokens_per_window == 2.0  # 8 tokens in 4 windows
    assert cell.occupancy == 0.75
    assert (cell.mean_width, cell.in_flight_max) == (3.0, 4)


def test_categories_are_also_summed_up_as_novel_and_copyable() -> None:
    categories = ("chat", "coding", "copy", "list", PREFILL)
    found = [measured(WHOLE, 10.0, category=category) for category in categories]
    assert summarize([WHOLE], found).groups == (*categories, NOVEL, COPIES)


def test_goals_tell_what_was_met() -> None:
    arms = [WHOLE, ONE_STAGE, PLAIN_20, AUTO_20]
    found = [
        measured(WHOLE, 10.0),
        measured(ONE_STAGE, 10.2),
        measured(PLAIN_20, 33.0, compute_ms=10.0),
        measured(AUTO_20, 34.0),
    ]
    judged = {verdict.goal: verdict.met for verdict in verdicts(summarize(arms, found))}
    assert judged == {
        "one stage against llama.cpp's loop, tok/s": True,
        "plain, 20 ms: time per token without compute, ms": False,
        "auto, 20 ms against plain, chat": True,
    }


def test_a_run_becomes_tables_and_plots() -> None:
    arms = [WHOLE, split(), split("auto"), PLAIN_20, AUTO_20]
    found = [measured(arm, 10.0 + place, round=number) for number in (0, 1) for place, arm in enumerate(arms)]
    summary = summarize(arms, found)
    places = ("processor", "cores", "system", "skippy", "llama-cpp-python", "python", "model", "suite")
    numbers = {"stages": 2, "compute.threads": 1, "max_tokens": 9, "temperature": 0.0, "repeat": 2}
    head = dict.fromkeys(places, "x") | numbers
    result = Result(head, "2026-01-01", summary, (), 8)
    markdown = result.to_markdown()
    assert "| auto, 20 ms | 71.4 |" in markdown
    assert "All 8 answers" in markdown
    assert len(result.to_json()["cells"]) == len(arms)
    image = Xml.fromstring(svg(summary))
    lines = image.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2  # plain and auto
    assert all(text in terminal(summary) for text in ("plain", "auto", "round trip, ms"))
