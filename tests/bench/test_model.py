"""The cost model's sums, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.bench.model import Answers, Costs, modelled, replay
from engine.bench.windows import Window

DRAFTED = Window(rows=2, after=0, stale=False, drafted=1, draft_ms=3.0, stage_ms=(10.0, 12.0))
PLAIN = Window(rows=1, after=0, stale=False, drafted=0, draft_ms=0.0, stage_ms=(5.0, 6.0))


def in_turn(window: Window, count: int) -> list[Window]:
    """Each is sent when the one before it has been answered."""
    return [replace(window, after=number) for number in range(count)]


def streamed(*after: int, stage_ms: tuple[float, ...] = (4.0, 6.0)) -> list[Window]:
    """Windows of three rows, each sent after so many replies."""
    return [Window(3, number, False, 0, 0.0, stage_ms) for number in after]


def timed(windows: list[Window], *, stages: int = 2, rest_ms: float = 10.0) -> float:
    return replay(windows, Costs.of(windows), stages=stages, rest_ms=rest_ms)


def test_one_window_at_a_time_takes_compute_drafting_and_the_rest() -> None:
    assert timed(in_turn(DRAFTED, 3)) == pytest.approx(3 * (10 + 12 + 3 + 10))
    alone = replace(DRAFTED, stage_ms=(22.0,))
    assert timed(in_turn(alone, 3), stages=1, rest_ms=1.0) == pytest.approx(3 * (22 + 3 + 1))


def test_costs_are_medians_of_as_many_rows_and_drafts() -> None:
    slow = replace(DRAFTED, stage_ms=(90.0, 13.0), draft_ms=80.0)
    costs = Costs.of([DRAFTED, slow, replace(DRAFTED, stage_ms=(11.0, 12.0)), PLAIN])
    assert costs.stage_ms == {(0, 2): 11.0, (1, 2): 12.0, (0, 1): 5.0, (1, 1): 6.0}
    assert costs.draft_ms == {1: 3.0}


def test_windows_that_follow_each_other_wait_for_a_stage_and_not_for_replies() -> None:
    """Stage 0 has them at 0, 4 and 8, stage 1 from 9, 15 and 21 on; replies are back at 20, 26 and 32. The
    fourth leaves at 20: 24, 29, 35, 40."""
    assert timed(streamed(0, 0, 0)) == 32.0
    assert timed(streamed(0, 0, 0, 1)) == 40.0


def test_stale_windows_take_the_time_of_the_stages_that_computed_them() -> None:
    """The first is back at 34. The next one reaches stage 1 at 43, which computes the stale one until 49."""
    first, stale, following = streamed(0, 0, 1, stage_ms=(4.0, 20.0))
    assert timed([first, replace(stale, stale=True), following]) == 74.0
    assert timed([first, replace(stale, stale=True, stage_ms=(4.0,)), following]) == 68.0
    assert timed([first, replace(stale, stale=True, stage_ms=()), following]) == 68.0


def test_an_answer_ends_with_its_last_token_and_not_with_what_was_stale_then() -> None:
    first, stale = streamed(0, 0)
    assert timed([first, replace(stale, stale=True)]) == 20.0


def test_the_rest_is_that_of_plain_decoding() -> None:
    """Plain: 21 ms a token, 10 of them R + b. Three windows of 35 ms gave five tokens: 21 ms each, too."""
    plain = Answers((in_turn(PLAIN, 4),), tokens=4, decode_ms=84.0)
    found = modelled(Answers((in_turn(DRAFTED, 3),), tokens=5, decode_ms=120.0), plain, 2)
    assert found is not None
    assert (found.plain_compute_ms, found.rest_ms) == (11.0, 10.0)
    assert (found.compute_ms, found.draft_ms, found.slowest_ms) == (22.0, 3.0, 15.0)
    assert found.token_ms == pytest.approx(21.0)
    assert found.against_plain == pytest.approx(1.0)
    assert found.of_model == pytest.approx(21 / 24)


def test_plain_decoding_is_what_the_model_says_of_it() -> None:
    plain = Answers((in_turn(PLAIN, 4), in_turn(PLAIN, 2)), tokens=6, decode_ms=130.0)
    found = modelled(plain, plain, 2)
    assert found is not None
    assert (found.of_model, found.against_plain) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("tokens", [0, 4])
def test_without_windows_or_tokens_nothing_can_be_said(tokens: int) -> None:
    nothing = Answers(((),), tokens=tokens, decode_ms=10.0 * tokens)
    assert modelled(nothing, nothing, 2) is None
