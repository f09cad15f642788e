"""The cost model's sums, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.bench.model import Answers, Costs, modelled, replay
from engine.bench.windows import Window

FIRST = Window(1, after=0, joins=False, stale=False, drafted=0, behind=False, draft_ms=0.0, stage_ms=())
PLAIN = replace(FIRST, after=1, stage_ms=(5.0, 6.0))
DRAFTED = replace(PLAIN, rows=2, drafted=1, draft_ms=3.0, stage_ms=(10.0, 12.0))


def in_turn(window: Window, count: int) -> list[Window]:
    """Each is sent when the one before it has been answered."""
    return [FIRST, *(replace(window, after=number + 1) for number in range(count))]


def streamed(*after: int, stage_ms: tuple[float, ...] = (4.0, 6.0)) -> list[Window]:
    """Windows of three rows, each sent after so many replies."""
    return [FIRST, *(replace(PLAIN, rows=3, after=number, stage_ms=stage_ms) for number in after)]


def behind(window: Window, draft_ms: float = 3.0) -> Window:
    """The same with a draft behind its reply."""
    return replace(window, drafted=1, behind=True, draft_ms=draft_ms)


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


def test_the_first_draft_of_an_answer_catches_up_with_the_prompt() -> None:
    """It takes what it took; later ones are alike, and what one of them took more is no part of the model."""
    opening, first, second, third = in_turn(DRAFTED, 3)
    slow = {"draft_ms": 50.0}
    assert timed([opening, replace(first, **slow), second, third]) == pytest.approx(
        3 * (22 + 10) + 50 + 3 + 3
    )
    assert timed([opening, first, replace(second, **slow), third]) == pytest.approx(3 * (22 + 10) + 3 + 3 + 3)


def test_windows_that_follow_each_other_wait_for_a_stage_and_not_for_replies() -> None:
    """Stage 0 has them at 0, 4 and 8, stage 1 from 9, 15 and 21 on; replies are back at 20, 26 and 32. The
    fourth leaves at 20: 24, 29, 35, 40."""
    assert timed(streamed(1, 1, 1)) == 32.0
    assert timed(streamed(1, 1, 1, 2)) == 40.0


def test_stale_windows_take_the_time_of_the_stages_that_computed_them() -> None:
    """The first is back at 34. The next one reaches stage 1 at 43, which computes the stale one until 49."""
    opening, first, stale, following = streamed(1, 1, 2, stage_ms=(4.0, 20.0))
    for stage_ms, took in (((4.0, 20.0), 74.0), ((4.0,), 68.0), ((), 68.0)):
        assert timed([opening, first, replace(stale, stale=True, stage_ms=stage_ms), following]) == took


def test_an_answer_ends_with_its_last_token_and_not_with_what_was_stale_then() -> None:
    opening, first, stale = streamed(1, 1)
    assert timed([opening, first, replace(stale, stale=True)]) == 20.0


def test_a_draft_behind_a_reply_delays_the_windows_that_it_joins_and_no_reply() -> None:
    """The first token is there at 0 and its draft at 3. The next token's row: 0, 5, 10, 16, back at 21. The
    draft's waits for either stage: 5, 10, 15, 22, back at 27, and so does the draft behind it, at 30."""
    joining = replace(PLAIN, joins=True)
    pair = [behind(FIRST), PLAIN, joining]
    assert timed(pair[:2]) == 21.0
    assert timed(pair) == 27.0
    assert timed([behind(FIRST), PLAIN, behind(joining), replace(PLAIN, after=3)]) == 48.0
    twice = [*(replace(window, after=3) for window in (PLAIN, joining))]
    assert timed([behind(FIRST), PLAIN, behind(joining), *twice]) == 54.0


def test_the_last_stage_is_busy_while_it_drafts_behind_a_reply() -> None:
    """For 30 ms from 5 before the first token on: the next token's row waits until 25, and is back at 36. The
    draft leaves at 30: 35, 40, 46, 51."""
    opening = behind(FIRST, 30.0)
    assert timed([opening, PLAIN]) == 36.0
    assert timed([opening, PLAIN, replace(PLAIN, joins=True)]) == 51.0


def test_a_refuted_draft_behind_a_reply_delays_nothing_but_the_stages() -> None:
    """The next token's row is back at 21, with another draft at 24. The old draft's waits at the last stage
    until that has drafted, which then knows better. The new token leaves at 21: 26, 31, 37, 42; its draft's
    row at 24: 26, 31, 36, 43, 48."""
    refuted = replace(PLAIN, joins=True, stale=True, stage_ms=(5.0,))
    wrong = [behind(FIRST), behind(PLAIN), refuted, replace(PLAIN, after=2)]
    assert timed(wrong) == 42.0
    assert timed([*wrong, replace(PLAIN, after=2, joins=True)]) == 48.0


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


def test_drafting_behind_replies_counts_like_drafting_in_them() -> None:
    """Plain: 21 ms a token. Two tokens in 27 ms, as worked out above, and one draft for two windows."""
    plain = Answers((in_turn(PLAIN, 4),), tokens=4, decode_ms=84.0)
    windows = [behind(FIRST), PLAIN, replace(PLAIN, joins=True)]
    found = modelled(Answers((windows,), tokens=2, decode_ms=30.0), plain, 2)
    assert found is not None
    assert (found.token_ms, found.of_model) == pytest.approx((13.5, 0.9))
    assert found.against_plain == pytest.approx(42 / 27)
    assert (found.compute_ms, found.draft_ms, found.slowest_ms) == (11.0, 1.5, 7.5)


def test_plain_decoding_is_what_the_model_says_of_it() -> None:
    plain = Answers((in_turn(PLAIN, 4), in_turn(PLAIN, 2)), tokens=6, decode_ms=130.0)
    found = modelled(plain, plain, 2)
    assert found is not None
    assert (found.of_model, found.against_plain) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("tokens", [0, 4])
def test_without_windows_or_tokens_nothing_can_be_said(tokens: int) -> None:
    nothing = Answers(((),), tokens=tokens, decode_ms=10.0 * tokens)
    assert modelled(nothing, nothing, 2) is None
