"""Figures, goals, tables and plots made of measurements."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest

from engine.bench.goals import verdicts
from engine.bench.measurement import Measurement
from engine.bench.plots import svg, terminal
from engine.bench.report import Result
from engine.bench.session import PREFILL
from engine.bench.summary import COPIES, NOVEL, Spread, summarize
from tests.bench.samples import HEAD, ONE_STAGE, WHOLE, measured, split

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


MTP_20 = split("mtp", 20.0)
FIRST_WINDOW = (1, 0, 0, 0, 0, 0, 0)
PLAIN_WINDOWS = (FIRST_WINDOW, *((1, number, 0, 0, 0, 0, 0, 5_000, 6_000) for number in range(1, 5)))
MTP_WINDOWS = (FIRST_WINDOW, *((2, number, 0, 0, 1, 0, 1_000, 9_000, 11_000) for number in range(1, 4)))


def modelled_run() -> list[Measurement]:
    """Plain: 11 ms of 31 are compute. Three windows with a draft, 41 ms each, give four tokens."""
    return [
        measured(PLAIN_20, 31.0, windows=PLAIN_WINDOWS),
        measured(MTP_20, 41.0, windows=MTP_WINDOWS, speculative={"windows": 3, "proposed": 3, "accepted": 1}),
    ]


def test_what_a_strategy_reached_stands_beside_what_the_cost_model_says() -> None:
    model = summarize([PLAIN_20, MTP_20], modelled_run()).cells["chat", MTP_20.name].model
    assert model is not None
    assert model.token_ms == pytest.approx(30.75)
    assert model.of_model.median == pytest.approx(30.75 / 41)
    assert model.against_plain.median == pytest.approx(31 / 30.75)
    assert (model.plain_compute_ms, model.rest_ms, model.compute_ms, model.draft_ms) == (11, 20, 20, 1)


def test_a_plain_token_is_a_window() -> None:
    """The counters also count the window that ended the prompt."""
    counters = {"windows": 5, "proposed": 0, "accepted": 0}
    found = [measured(PLAIN_20, 31.0, windows=PLAIN_WINDOWS, speculative=counters)]
    assert summarize([PLAIN_20], found).cells["chat", PLAIN_20.name].tokens_per_window == 1.0


def test_plain_decoding_is_its_own_model_and_without_windows_there_is_none() -> None:
    cells = summarize([PLAIN_20, MTP_20], modelled_run()).cells
    assert cells["chat", PLAIN_20.name].model is None
    unrecorded = [measured(PLAIN_20, 31.0), measured(MTP_20, 41.0)]
    assert summarize([PLAIN_20, MTP_20], unrecorded).cells["chat", MTP_20.name].model is None


def test_a_missed_goal_is_told_with_the_most_that_its_windows_can_reach() -> None:
    summary = summarize([PLAIN_20, MTP_20], modelled_run())
    judged = {verdict.goal: verdict.met for verdict in verdicts(summary)}
    assert judged["mtp against plain, 20 ms, chat"] is False
    assert judged["mtp against the cost model, 20 ms, chat"] is False
    markdown = Result(HEAD, "2026-01-01", summary, (), 2).to_markdown()
    figures = ">= 1.1 | 0.756 | 1.01 | 1.33 | 11.00 | 20.00 | 20.00 | 1.00 | 12.00"
    assert f"| mtp against plain, 20 ms, chat | {figures} |" in markdown


def test_a_run_becomes_tables_and_plots() -> None:
    arms = [WHOLE, split(), split("auto"), PLAIN_20, AUTO_20]
    found = [measured(arm, 10.0 + place, round=number) for number in (0, 1) for place, arm in enumerate(arms)]
    summary = summarize(arms, found)
    result = Result(HEAD, "2026-01-01", summary, (), 8)
    markdown = result.to_markdown()
    assert "| auto, 20 ms | 71.4 |" in markdown
    assert "All 8 answers" in markdown
    assert len(result.to_json()["cells"]) == len(arms)
    image = Xml.fromstring(svg(summary))
    lines = image.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2  # plain and auto
    assert all(text in terminal(summary) for text in ("plain", "auto", "round trip, ms"))
