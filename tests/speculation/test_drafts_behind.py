"""Drafts that come behind the reply to their window: what they cost, and what is sent because of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft
from engine.speculation.costs import CostModel, LoopTimes
from engine.speculation.drafts_behind import best_way, following_ms, useful_depth, window_ms
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import LoopContext, WindowPlan
from tests.speculation.driving import answer, only_window
from tests.speculation.test_goodput import measured

TIMES = LoopTimes(
    loop=[0.0, 30.0, 40.0, 50.0],
    slowest=[0.0, 6.0, 11.0, 16.0],
    first=[0.0, 4.0, 9.0, 14.0],
    last=[0.0, 6.0, 11.0, 16.0],
    step=10.0,
)


@dataclass
class Known:
    """Costs that somebody wrote down."""

    each_ms: float = 2.0
    beside_drafts_ms: dict[int, float] = field(default_factory=dict)
    lags: dict[int, float] = field(default_factory=dict)
    crowded: float = 1.0

    def draft_ms(self, drafts: int) -> float:
        return drafts * self.each_ms

    def lag_ms(self, rows: int) -> float | None:
        return self.lags.get(rows)

    def crowding(self, rows: int) -> float:
        return self.crowded


def test_a_window_waits_for_drafting_only_where_that_takes_longer_than_its_way() -> None:
    """It is at the head after 24 ms."""
    assert window_ms(Known(), TIMES, 2) == 30.0
    assert window_ms(Known(each_ms=20.0), TIMES, 2) == 30.0 + 40.0 - 24.0


def test_what_was_measured_counts_and_tells_of_other_numbers_of_drafts() -> None:
    """Two drafts of 20 ms should have cost 16 ms and took 19; so three cost 36 and 3 more."""
    costs = Known(each_ms=20.0, beside_drafts_ms={2: 19.0})
    assert window_ms(costs, TIMES, 2) == 49.0
    assert window_ms(costs, TIMES, 3) == 30.0 + 36.0 + 3.0
    assert window_ms(costs, TIMES, 1) == 33.0


def test_drafts_take_the_slowest_stage_once_for_each_that_was_right() -> None:
    """The second is answered 6 ms after the first, or when it has been made; the third 30/4 ms later."""
    assert following_ms(Known(), TIMES, [0.5], 1, 4) == pytest.approx(0.5 * 6)
    assert following_ms(Known(), TIMES, [0.5, 0.25], 1, 4) == pytest.approx(0.5 * 6 + 0.25 * 7.5)
    assert following_ms(Known(), TIMES, [0.5, 0.25], 1, 8) == pytest.approx(0.5 * 6 + 0.25 * 6)
    assert following_ms(Known(each_ms=5.0), TIMES, [0.5, 0.25], 1, 8) == pytest.approx(0.5 * 10 + 0.25 * 6)
    assert following_ms(Known(lags={1: 9.0}), TIMES, [0.5], 1, 4) == pytest.approx(0.5 * 9)
    assert following_ms(Known(crowded=2.0), TIMES, [0.5], 1, 4) == pytest.approx(0.5 * 12)


def test_drafts_in_one_window_are_answered_together() -> None:
    """Ten milliseconds later than a window of one row behind the first would be."""
    assert following_ms(Known(), TIMES, [0.5, 0.25], 2, 4) == pytest.approx(0.5 * (6 + 10))


def test_of_drafts_under_way_only_the_others_count() -> None:
    assert following_ms(Known(), TIMES, [0.5, 0.4, 0.3], 1, 5, sent=1) == pytest.approx(6 * 0.7)
    assert following_ms(Known(), TIMES, [0.5, 0.4, 0.3], 2, 4, sent=1) == pytest.approx(11 * 0.4)


def test_a_wrong_draft_costs_what_the_first_stage_still_spends_on_it() -> None:
    """Without a network: the next token is there after 10 ms, the first stage is busy until 12."""
    near = LoopTimes([0.0, 10.0], [0.0, 6.0], [0.0, 6.0], [0.0, 4.0], 10.0)
    assert following_ms(Known(), near, [0.0], 1, 2) == pytest.approx(2.0)


def test_single_rows_are_best_where_each_costs_the_same_and_one_window_where_rows_are_free() -> None:
    assert best_way(Known(), TIMES, [0.9, 0.8, 0.7], 4)[1] == 1
    free = LoopTimes([0.0, 30.0, 30.5, 31.0], [0.0, 15.0, 15.2, 15.5], [0.0] * 4, [0.0] * 4, 30.0)
    assert best_way(Known(), free, [0.9, 0.8, 0.7], 4)[1] == 3


def test_no_window_is_sent_that_would_only_wait() -> None:
    """Two stages of 5 ms and a little network keep two windows busy, and 20 ms of network two more."""
    times = LoopTimes([0.0, 11.0], [0.0, 5.0], [0.0, 5.0], [0.0, 5.0], 10.0)
    assert useful_depth(Known(), times, 1, 8) == 2
    times = LoopTimes([0.0, 30.0], [0.0, 10.0], [0.0, 5.0], [0.0, 10.0], 15.0)
    assert useful_depth(Known(), times, 1, 8) == 3
    assert useful_depth(Known(), times, 1, 2) == 2


def test_a_window_beside_drafts_is_compared_with_whole_windows_alone() -> None:
    costs = CostModel()
    costs.observe_beside_drafts(1, 30.0)
    assert costs.beside_drafts_ms == {}
    costs.observe_beside_drafts(0, 21.0)
    assert costs.beside_drafts_ms == {1: pytest.approx(9.0)}


# --- the loop -----------------------------------------------------------------------------------------------


def drafting_loop(
    *,
    behind: bool = True,
    depth: int = 4,
    cooldown: int = 0,
    max_tokens: int = 50,
    costs: CostModel | None = None,
) -> DecodeLoop:
    """After the end of the prompt; the costs are known, so drafts are asked for at once."""
    plan = SpeculationPlan("mtp", pipeline_depth=depth, draft_max=2, reject_cooldown_tokens=cooldown)
    context = LoopContext(
        prompt=[1, 2, 3],
        max_tokens=max_tokens,
        context_limit=1000,
        window_rows=16,
        native_mtp=True,
        drafts_behind=behind,
        costs=costs or measured(20),
    )
    return DecodeLoop(plan, context)


def draft(loop: DecodeLoop, *tokens: int, after: int | None = None, position: int | None = None) -> Draft:
    """For the next position, unless it says something else."""
    at = len(loop.history) if position is None else position
    follows = loop.history[-1] if after is None else after
    return Draft(at, follows, tokens, (0.8,) * len(tokens), 2400)


def begin(loop: DecodeLoop) -> WindowPlan:
    """The window of one row that carries the first token, 10."""
    first = only_window(loop.start(0.0))
    return only_window(loop.on_reply(answer(first, [10]), 0.03))


def test_the_next_token_leaves_at_once_and_its_drafts_follow_alone() -> None:
    loop = drafting_loop()
    token = begin(loop)
    assert (token.tokens, token.draft_later, token.draft_budget) == ((10,), True, 2)
    drafts = loop.on_draft(draft(loop, 11, 12), 0.033).windows
    assert [(window.tokens, window.start, window.epoch) for window in drafts] == [
        ((11,), 4, token.epoch),
        ((12,), 5, token.epoch),
    ]
    assert [window.draft_later for window in drafts] == [True, True]
    assert not loop.on_reply(answer(token, [11]), 0.065).windows
    committed = loop.on_reply(answer(drafts[0], [12]), 0.07).committed
    assert [(token.token, token.origin) for token in committed] == [(12, "mtp")]
    actions = loop.on_reply(answer(drafts[1], [13]), 0.075)
    assert [(token.token, token.origin) for token in actions.committed] == [(13, "free")]
    assert only_window(actions).tokens == (13,)
    assert loop.statistics.violations() == []


def test_a_wrong_draft_is_replaced_without_waiting() -> None:
    loop = drafting_loop()
    token = begin(loop)
    stale = loop.on_draft(draft(loop, 11, 12), 0.033).windows
    actions = loop.on_reply(answer(token, [20]), 0.065)
    assert actions.cancel_epoch == token.epoch
    assert only_window(actions).tokens == (20,)
    joined = loop.on_draft(draft(loop, 21), 0.068).windows  # behind the stale ones
    assert [window.tokens for window in joined] == [(21,)]
    for window in stale:
        assert not loop.on_reply(answer(window, [], stale=True), 0.07).committed


@pytest.mark.parametrize("wrong", [{"after": 99}, {"position": 3}, {"position": 5}])
def test_a_draft_for_another_place_is_not_used(wrong: dict[str, int]) -> None:
    loop = drafting_loop()
    token = begin(loop)
    assert loop.on_draft(draft(loop, 11, **wrong), 0.033).windows == ()
    actions = loop.on_reply(answer(token, [11]), 0.065)  # nor later, where it would fit
    assert only_window(actions).tokens == (11,)
    assert loop.statistics.proposed == 0


def test_a_draft_that_comes_when_the_text_has_gone_on_is_not_used() -> None:
    loop = drafting_loop()
    late = draft(loop, 11)
    token = begin(loop)
    late = draft(loop, 11, 12)
    only_window(loop.on_reply(answer(token, [11]), 0.06))
    assert loop.on_draft(late, 0.061).windows == ()


def test_a_window_beside_a_draft_that_was_of_no_use_was_not_alone() -> None:
    """It took 100 ms, the one after it 30 ms."""
    costs = measured(20)
    loop = drafting_loop(costs=costs)
    token = begin(loop)
    assert loop.on_draft(draft(loop, 11, 12, after=99), 0.033).windows == ()
    following = only_window(loop.on_reply(answer(token, [11]), 0.13))
    loop.on_reply(answer(following, [12]), 0.16)
    assert costs.beside_drafts_ms == {2: pytest.approx(70.0)}


def test_an_answer_of_one_token_needs_no_draft() -> None:
    assert only_window(drafting_loop(max_tokens=1).start(0.0)).draft_budget == 0
    assert only_window(drafting_loop(max_tokens=9).start(0.0)).draft_budget > 0


def test_nothing_is_sent_for_a_draft_after_the_end() -> None:
    loop = drafting_loop(max_tokens=2)
    token = begin(loop)
    assert token.draft_budget == 0  # no more than one token may come, and it needs no draft
    loop.on_reply(answer(token, [11]), 0.06)
    assert loop.stop_reason == "length"
    assert loop.on_draft(draft(loop, 12), 0.07).windows == ()


def test_plain_steps_after_a_wrong_draft_stay_plain() -> None:
    loop = drafting_loop(cooldown=2)
    token = begin(loop)
    loop.on_draft(draft(loop, 11), 0.033)
    plain = only_window(loop.on_reply(answer(token, [20]), 0.065))
    assert plain.reason == "cooldown"
    assert loop.on_draft(draft(loop, 21), 0.068).windows == ()


@pytest.mark.parametrize("settings", [{"behind": False}, {"depth": 1}])
def test_drafts_come_in_replies_where_nothing_can_follow(settings: dict[str, int]) -> None:
    loop = drafting_loop(**settings)  # type: ignore[arg-type]
    token = begin(loop)
    assert token.draft_budget > 0
    assert not token.draft_later


def test_rows_that_the_head_has_seen_are_counted_when_its_draft_comes() -> None:
    loop = drafting_loop()
    token = begin(loop)
    loop.on_reply(answer(token, [11]), 0.06)
    assert loop.rows_not_drafted == 1
    loop.on_draft(draft(loop, 12), 0.07)
    assert loop.rows_not_drafted == 0
