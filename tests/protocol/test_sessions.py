"""Positions leave no gap, windows come in order, and every reply is the one that is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ProtocolError
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    Draft,
    DraftedTokens,
    ErrorMessage,
    Message,
    PrefillDone,
    Stop,
    TrimSession,
    VerifyWindow,
)
from engine.protocol.sessions import LaneSessions, ReplyOrder
from tests.protocol.samples import LIMITS, N_EMBD, prefill, reply, rows, window


def lane(*sent: Message, tokens_only: bool = False) -> LaneSessions:
    """A lane on which these messages have been sent."""
    sessions = LaneSessions(LIMITS, N_EMBD, tokens_only=tokens_only)
    for message in sent:
        sessions.forward(message)
    return sessions


def code(action: Callable[[Message], None], message: Message) -> str:
    with pytest.raises(ProtocolError) as caught:
        action(message)
    return caught.value.code


CONFIGURE = ConfigureGeneration(1)


def test_an_answer_from_prefill_to_stop_is_legal() -> None:
    lane(
        CONFIGURE,
        prefill(0, 32),
        prefill(32, 10, final=True),
        window(0, 42),
        window(1, 43, 4),
        window(2, 47, 4),
        CancelEpoch(1, 0),
        window(3, 45, 2, epoch=1),  # position 45 was rejected: the stages trim themselves to it
        TrimSession(1, 20),
        CONFIGURE,
        prefill(20, 5, final=True),
        window(4, 25, epoch=1),
        Stop(1),
    )


@pytest.mark.parametrize("message", [window(0, 0), prefill(0, 1), TrimSession(1, 0), Stop(1)])
def test_a_session_is_configured_before_anything_else(message: Message) -> None:
    assert code(lane().forward, message) == "session"
    assert code(lane(ConfigureGeneration(2)).forward, message) == "session"
    assert code(lane(CONFIGURE, Stop(1)).forward, message) == "session"


def test_a_cancel_may_overtake_the_configuration() -> None:
    lane(CancelEpoch(1, 3))


def test_sessions_are_limited_until_one_stops() -> None:
    sessions = lane(CONFIGURE, ConfigureGeneration(2), CONFIGURE)
    assert code(sessions.forward, ConfigureGeneration(3)) == "session"
    sessions.forward(Stop(2))
    sessions.forward(ConfigureGeneration(3))


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_session_number_fits_the_frames(number: int) -> None:
    assert code(lane().forward, ConfigureGeneration(number)) == "fields"


def test_a_gap_in_positions_is_refused() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10))
    assert code(sessions.forward, window(0, 11)) == "position"
    assert code(sessions.forward, prefill(11, 2)) == "position"
    sessions.forward(window(0, 10))


def test_going_back_shortens_what_may_come_next() -> None:
    sessions = lane(CONFIGURE, prefill(0, 20), window(0, 15, epoch=1))
    assert code(sessions.forward, window(1, 17, epoch=1)) == "position"
    sessions.forward(window(1, 16, epoch=1))


def test_a_trim_keeps_at_most_what_is_there() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10))
    assert code(sessions.forward, TrimSession(1, 11)) == "position"
    sessions.forward(TrimSession(1, 4))
    assert code(sessions.forward, window(0, 5)) == "position"
    sessions.forward(window(0, 4))


def test_stale_windows_may_follow_each_other() -> None:
    sessions = lane()
    sessions.forward(CONFIGURE)
    for number, start in enumerate((0, 3, 6)):  # none was computed, so each begins after a gap
        sessions.forward(window(number, start, 3, stale=True, activations=None))
    assert code(sessions.forward, window(3, 9, 1)) == "position"
    sessions.forward(window(4, 0, 1))


def test_a_stale_window_takes_no_place_and_carries_nothing() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10))
    sessions.forward(window(0, 10, 4, stale=True, activations=None))
    assert code(sessions.forward, window(1, 14)) == "position"
    assert code(sessions.forward, window(1, 10, 4, stale=True)) == "rows"
    sessions.forward(window(1, 10))


def test_positions_end_at_the_context() -> None:
    sessions = lane(CONFIGURE, *[prefill(start, 32) for start in range(0, 256, 32)])
    sessions.forward(window(0, 255))
    assert code(sessions.forward, window(1, 255, 2)) == "position"


def test_window_ids_rise_and_epochs_do_not_fall() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10), window(5, 10, epoch=2))
    assert code(sessions.forward, window(5, 10, epoch=2)) == "window-order"  # replayed
    assert code(sessions.forward, window(4, 10, epoch=2)) == "window-order"
    assert code(sessions.forward, window(6, 10, epoch=1)) == "window-order"
    sessions.forward(window(9, 10, epoch=3))


def test_a_session_number_starts_afresh_after_stop() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10), window(5, 10), Stop(1), CONFIGURE)
    assert code(sessions.forward, window(0, 10)) == "position"
    sessions.forward(window(0, 0))


def test_the_sessions_of_a_lane_do_not_disturb_each_other() -> None:
    sessions = lane(CONFIGURE, ConfigureGeneration(2), prefill(0, 10), window(5, 10))
    assert code(sessions.forward, window(0, 10, session=2)) == "position"
    sessions.forward(window(0, 0, session=2))
    sessions.forward(window(6, 11))


@pytest.mark.parametrize("n", [0, 9])
def test_a_window_has_as_many_rows_as_agreed(n: int) -> None:
    assert code(lane(CONFIGURE).forward, window(0, 0, n)) == "rows"


def test_activations_have_the_shape_that_was_agreed() -> None:
    sessions = lane(CONFIGURE)
    assert code(sessions.forward, window(0, 0, 2, activations=None)) == "rows"
    assert code(sessions.forward, window(0, 0, 2, activations=rows(2, n_embd=N_EMBD + 1))) == "rows"
    assert code(sessions.forward, prefill(0, 2, activations=rows(3))) == "rows"


def test_a_stage_that_begins_with_the_first_layer_gets_tokens_only() -> None:
    sessions = lane(CONFIGURE, tokens_only=True)
    assert code(sessions.forward, window(0, 0)) == "rows"
    sessions.forward(window(0, 0, activations=None))


def test_a_refused_message_leaves_no_trace() -> None:
    sessions = lane(CONFIGURE, prefill(0, 10))
    assert code(sessions.forward, window(7, 10, 9)) == "rows"
    sessions.forward(window(0, 10))


# --- replies ------------------------------------------------------------------------------------------------


def order(*sent: Message) -> ReplyOrder:
    """An order in which the replies to these messages are due."""
    due = ReplyOrder()
    for message in sent:
        due.sent(message)
    return due


def test_replies_are_ticked_off_in_order() -> None:
    chunk, first, second = prefill(0, 10), window(0, 10, 2), window(1, 12)
    due = order(CONFIGURE, chunk, first, second)
    assert due.due(1) == 3
    due.received(PrefillDone(1, 10))
    due.received(reply(first))
    due.received(reply(second))
    assert due.due(1) == 0


def test_a_reply_out_of_order_is_an_error_and_not_a_reorder() -> None:
    first, second = window(0, 0), window(1, 1)
    due = order(first, second)
    assert code(due.received, reply(second)) == "window-order"
    assert due.due(1) == 2
    due.received(reply(first))
    assert code(due.received, reply(first)) == "window-order"  # replayed


def test_a_reply_that_nobody_asked_for_is_an_error() -> None:
    assert code(order().received, reply(window(0, 0))) == "window-order"
    assert code(order().received, PrefillDone(1, 5)) == "window-order"
    assert code(order(window(0, 0, session=2)).received, reply(window(0, 0))) == "window-order"


def test_a_reply_fits_its_window() -> None:
    asked = window(3, 10, 2, draft_budget=1)
    due = order(asked)
    assert code(due.received, reply(asked, epoch=1)) == "window-order"
    assert code(due.received, reply(asked, start=11)) == "window-order"
    assert code(due.received, reply(asked, predictions=(1,))) == "rows"
    assert code(due.received, reply(asked, stale=True)) == "rows"
    assert code(due.received, reply(asked, draft=Draft(13, 3, (1, 2), (0.5, 0.5)))) == "rows"
    due.received(reply(asked, draft=Draft(13, 3, (1,), (0.5,))))


def drafted(asked: VerifyWindow, *tokens: int) -> DraftedTokens:
    """The draft behind the reply to a window."""
    return DraftedTokens(asked.session, asked.window, asked.epoch, Draft(9, 3, tokens, (0.5,) * len(tokens)))


def test_a_draft_comes_between_the_reply_to_its_window_and_the_next_one() -> None:
    first, second = (window(number, number, draft_budget=2, draft_later=True) for number in range(2))
    due = order(first, second)
    assert code(due.received, drafted(first, 1)) == "window-order"  # before its reply
    due.received(reply(first))
    due.received(drafted(first, 1, 2))
    assert code(due.received, drafted(first, 1)) == "window-order"  # a second one
    due.received(reply(second))  # whose draft may stay away
    assert due.due(1) == 0
    due.sent(window(2, 2))
    due.received(reply(window(2, 2)))
    assert code(due.received, drafted(second, 1)) == "window-order"  # after the reply to another window


def test_a_draft_behind_a_reply_fits_what_was_asked_for() -> None:
    asked = window(0, 0, draft_budget=1, draft_later=True)
    assert code(order(asked).received, reply(asked, draft=Draft(2, 1, (5,), (0.5,)))) == "rows"
    one = drafted(asked, 1)
    for wrong in (drafted(asked, 1, 2), replace(one, epoch=4), replace(one, window=1)):
        due = order(asked)
        due.received(reply(asked))
        assert code(due.received, wrong) in ("rows", "window-order")


@pytest.mark.parametrize("changes", [{"draft_later": False}, {"stale": True}])
def test_a_draft_behind_a_reply_that_nobody_asked_for_is_an_error(changes: dict[str, bool]) -> None:
    asked = window(0, 0, draft_budget=2, draft_later=changes.get("draft_later", True))
    due = order(asked)
    due.received(reply(asked, stale=True, predictions=()) if "stale" in changes else reply(asked))
    assert code(due.received, drafted(asked, 1)) == "window-order"


def test_an_error_answers_a_draft_as_well() -> None:
    asked = window(0, 0, draft_budget=2, draft_later=True)
    due = order(asked)
    due.received(reply(asked))
    due.received(ErrorMessage("backend", "no", session=1))
    assert code(due.received, drafted(asked, 1)) == "window-order"


def test_a_stale_reply_is_an_answer() -> None:
    due = order(window(0, 0, 3))
    due.received(reply(window(0, 0, 3), stale=True, predictions=()))
    assert due.due(1) == 0


def test_prefill_and_windows_are_answered_in_one_order() -> None:
    due = order(prefill(0, 10), window(0, 10))
    assert code(due.received, reply(window(0, 10))) == "window-order"
    assert code(due.received, PrefillDone(1, 9)) == "window-order"
    due.received(PrefillDone(1, 10))
    assert code(due.received, PrefillDone(1, 11)) == "window-order"


def test_an_error_answers_its_window_or_its_whole_session() -> None:
    first, second, third = window(0, 0), window(1, 1), window(2, 2)
    due = order(first, second, third)
    due.received(ErrorMessage("trim", "no", session=1, window=1))
    due.received(reply(first))
    due.received(reply(third))
    due.sent(window(3, 3))
    due.received(ErrorMessage("backend", "no", session=1))
    assert due.due(1) == 0
    due.sent(window(4, 3))
    due.received(ErrorMessage("stage-lost", "no session named"))
    assert due.due(1) == 1


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=20), st.data())
def test_any_interleaving_of_sessions_is_fine_as_long_as_each_is_in_order(
    asked: list[tuple[int, int]], data: st.DataObject
) -> None:
    sent = [VerifyWindow(session, number, 0, 0, (0,) * n) for number, (session, n) in enumerate(asked)]
    due = order(*sent)
    waiting = {session: [m for m in sent if m.session == session] for session in (1, 2, 3)}
    while left := [session for session, queue in waiting.items() if queue]:
        queue = waiting[data.draw(st.sampled_from(left))]
        if len(queue) > 1:
            assert code(due.received, reply(queue[-1])) == "window-order"
        due.received(reply(queue.pop(0)))
    assert all(due.due(session) == 0 for session in (1, 2, 3))
