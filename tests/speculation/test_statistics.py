"""Counters, and the rules between them."""

from __future__ import annotations

import orjson

from engine.speculation.statistics import Statistics, WidthCount
from engine.speculation.stream import Candidate
from engine.speculation.types import WindowPlan


def window(width: int, in_flight: int = 1) -> WindowPlan:
    return WindowPlan(0, 0, 0, (1,) * (width + 1), 0, width, (), in_flight, "")


def consistent() -> Statistics:
    """Two windows: three drafts of which two were accepted and then corrected, and a plain step."""
    statistics = Statistics()
    statistics.pipeline.depth_max = 1
    drafts = [Candidate(1, "mtp", 0), Candidate(2, "ngram", 3), Candidate(3, "ngram", 4)]
    statistics.add_window(window(3), drafts)
    statistics.add_window(window(0), [])
    for number, draft in enumerate(drafts[:2]):
        statistics.add_accepted(draft.source, number)
        statistics.add_committed(draft.source)
    statistics.add_committed("correction")
    statistics.add_committed("target")
    statistics.verified_drafted_windows = 1
    return statistics


def test_the_rules_hold() -> None:
    assert consistent().violations() == []


def test_the_smallest_width_may_be_zero() -> None:
    """B1: 0 is an observation, not the absence of one."""
    widths = WidthCount()
    for width in (0, 3, 2):
        widths.add(width)
    assert (widths.smallest, widths.largest, widths.count) == (0, 3, 3)
    later = WidthCount()
    for width in (3, 2):
        later.add(width)
    assert later.smallest == 2


def test_more_accepted_than_proposed_is_a_violation() -> None:
    """B12, C13."""
    statistics = consistent()
    statistics.add_accepted("mtp", 0)
    statistics.add_committed("mtp")
    assert any("accepted 2 of 1" in rule for rule in statistics.violations())


def test_a_free_token_counted_as_accepted_is_a_violation() -> None:
    statistics = consistent()
    statistics.sources["ngram"].accepted += 1
    assert statistics.violations()


def test_an_emitted_token_of_no_epoch_is_a_violation() -> None:
    statistics = consistent()
    statistics.emitted += 1
    assert statistics.violations()


def test_more_in_flight_than_allowed_is_a_violation() -> None:
    statistics = consistent()
    statistics.add_window(window(0, in_flight=2), [])
    assert any("2 in flight at depth 1" in rule for rule in statistics.violations())


def test_the_json_form() -> None:
    result = orjson.loads(orjson.dumps(consistent().to_json()))
    assert (result["windows"], result["proposed"], result["accepted"]) == (2, 3, 2)
    assert result["acceptance_rate"] == round(2 / 3, 4)
    assert result["propose_rate"] == 0.5
    assert result["mean_accepted_length"] == 2.0
    assert result["by_source"] == {
        "mtp": {"proposed": 1, "accepted": 1},
        "ngram": {"proposed": 2, "accepted": 1},
        "draft": {"proposed": 0, "accepted": 0},
    }
    assert result["accepted_per_position"] == [1, 1, 0]
    assert result["width"]["min"] == 0
    assert result["pipeline"]["depth_max"] == 1


def test_the_json_form_of_nothing_has_no_division_by_zero() -> None:
    result = Statistics().to_json()
    assert (result["acceptance_rate"], result["propose_rate"], result["mean_accepted_length"]) == (0, 0, 0)
    assert result["pipeline"]["occupancy"] == 0
