"""The decode loop answered by hand: positions, stops, order of replies, the end of a request."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from engine.config.plan import SpeculationPlan
from engine.errors import ProtocolError
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import LoopContext, Rejection, StopSignal, WindowPlan
from tests.speculation.driving import FIXED, agree, answer, only_window, plain_loop, scripted
from tests.speculation.simulator import FakeMtp

REPEATED = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]  # a lookup of the last three tokens continues with 4, 5, 6, ..


def repeating_loop(plan: SpeculationPlan = FIXED, **context: object) -> DecodeLoop:
    """A loop whose first token completes `REPEATED`, so that it speculates from its second window on."""
    values: dict[str, object] = {"max_tokens": 100, "context_limit": 1000, "window_rows": 64, **context}
    return DecodeLoop(plan, LoopContext(prompt=REPEATED[:-1], **values))  # type: ignore[arg-type]


def first_drafts(loop: DecodeLoop) -> WindowPlan:
    """Start a `repeating_loop`; its first window with drafts."""
    return only_window(loop.on_reply(answer(only_window(loop.start(0.0)), REPEATED[-1:]), 0.5))


# Positions


def test_the_first_window_holds_the_last_prompt_token() -> None:
    window = only_window(plain_loop([7, 8, 9]).start(0.0))
    assert (window.start, window.tokens, window.width) == (2, (9,), 0)


def test_the_first_window_has_no_drafts_even_where_there_are_some() -> None:
    """Its row may be computed as the end of the prefill, in a batch of another size than a window's."""
    loop = DecodeLoop(FIXED, LoopContext(prompt=REPEATED, max_tokens=9, context_limit=99, window_rows=9))
    window = only_window(loop.start(0.0))
    assert (window.start, window.tokens) == (10, (3,))
    assert only_window(loop.on_reply(answer(window, [4]), 1.0)).width > 0


def test_plain_decoding_is_one_row_after_the_other() -> None:
    loop = plain_loop([7, 8, 9], max_tokens=3)
    actions = loop.start(0.0)
    rows = []
    for token in (10, 11, 12):
        window = only_window(actions)
        rows.append((window.start, window.tokens))
        actions = loop.on_reply(answer(window, [token]), 1.0)
    assert rows == [(2, (9,)), (3, (10,)), (4, (11,))]
    assert actions.finished == "length"
    assert [item.origin for item in actions.committed] == ["target"]


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        plain_loop([])


def test_a_wrong_draft_is_replaced_and_the_next_window_starts_there() -> None:
    loop = repeating_loop(replace(FIXED, window_max=4))
    window = first_drafts(loop)
    assert (window.start, window.tokens) == (10, (3, 4, 5, 6, 7))
    actions = loop.on_reply(answer(window, [4, 5, 90, 7, 8]), 1.0)
    assert [(item.token, item.origin) for item in actions.committed] == [
        (4, "ngram"),
        (5, "ngram"),
        (90, "correction"),
    ]
    assert actions.done is not None
    assert (actions.done.accepted, actions.done.width) == (2, 4)
    assert actions.done.rejected == Rejection(position=13, drafted=6, actual=90)
    assert actions.cancel_epoch is None  # nothing else was under way
    following = only_window(actions)
    assert (following.start, following.tokens) == (13, (90,))
    assert following.epoch > window.epoch


def test_a_window_accepted_whole_yields_the_free_token() -> None:
    loop = repeating_loop(replace(FIXED, window_max=2))
    actions = loop.on_reply(answer(first_drafts(loop), [4, 5, 60]), 1.0)
    assert [item.origin for item in actions.committed] == ["ngram", "ngram", "free"]
    assert loop.statistics.violations() == []


def test_a_free_token_that_equals_the_next_candidate_uses_it_up() -> None:
    loop = repeating_loop(replace(FIXED, window_max=2))
    window = first_drafts(loop)
    following = only_window(loop.on_reply(answer(window, agree(window, 6)), 1.0))
    assert (following.start, following.tokens) == (13, (6, 7, 8))


def test_windows_continue_each_other_without_overlap() -> None:
    plan = replace(FIXED, window_max=2, pipeline_depth=3)
    simulation = scripted(REPEATED, [4, 5, 6, 7, 8, *REPEATED, 4, 5, 6], plan)
    plans = simulation.run().plans
    pipelined = [(a, b) for a, b in pairwise(plans) if a.epoch == b.epoch]
    assert pipelined
    for first, second in pipelined:
        assert second.start == first.start + len(first.tokens)
        assert second.width == len(second.tokens)  # a continuation holds drafts only


# The end of a request


def test_the_end_of_generation_token_is_counted_but_is_no_text() -> None:
    """C5: end of sequence as number 2 of an accepted window of 6; what was drafted after it is void."""
    eos = 6

    def stop(token: int) -> StopSignal | None:
        return "end" if token == eos else None

    loop = repeating_loop(replace(FIXED, window_max=6), stop=stop)
    window = first_drafts(loop)
    actions = loop.on_reply(answer(window, agree(window, 11)), 1.0)
    assert [(item.token, item.ends) for item in actions.committed] == [(4, False), (5, False), (6, True)]
    assert actions.finished == "stop"
    statistics = loop.statistics
    assert (statistics.emitted, statistics.accepted, statistics.proposed) == (4, 3, 6)
    assert statistics.accepted_per_position == [1, 1, 1, 0, 0, 0]
    assert statistics.violations() == []


@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_nothing_follows_a_stop_string(width: int) -> None:
    """C6: the tokens spell E, N, D, x, y, in one window or across two."""
    spelled = {4: "E", 5: "N", 6: "D", 7: "x", 8: "y"}
    text = ""

    def stop(token: int) -> StopSignal | None:
        nonlocal text
        text += spelled.get(token, "?")
        return "stop" if text.endswith("END") else None

    simulation = scripted(
        REPEATED, [4, 5, 6, 7, 8], replace(FIXED, window_max=width, pipeline_depth=4), stop=stop
    )
    result = simulation.run()
    assert (result.tokens, result.finished, text) == ([4, 5, 6], "stop", "END")
    assert simulation.loop.kv_length == len(REPEATED) + len(result.tokens) - 1
    for stage in result.stages:
        stage.trim(simulation.loop.kv_length)
        assert stage.holds([*REPEATED, 4, 5])


def test_a_stop_inside_the_window_wins_over_the_limit() -> None:
    """C7: a window yields 10, 11, STOP, 20, 21, 22 with max_tokens 5."""
    stop_token = 99

    def stop(token: int) -> StopSignal | None:
        return "end" if token == stop_token else None

    prompt = [1, 2, 3, 10, 11, stop_token, 20, 21, 22, 1, 2]
    context = LoopContext(prompt=prompt, max_tokens=6, context_limit=1000, window_rows=64, stop=stop)
    loop = DecodeLoop(FIXED, context)
    window = first_drafts(loop)
    assert len(window.tokens) == 5  # five tokens at most: the last one needs no row
    actions = loop.on_reply(answer(window, [10, 11, stop_token, 20, 21]), 1.0)
    assert [item.token for item in actions.committed if not item.ends] == [10, 11]
    assert actions.finished == "stop"


def test_right_drafts_after_the_end_leave_nothing_behind() -> None:
    """C8: the draft goes on beyond the end, rightly; the next turn's caches hold nothing of it."""
    end = 77
    prompt = [1, 2, 3, *range(4, 60), end, *range(80, 90), 1, 2, 3]

    def stop(token: int) -> StopSignal | None:
        return "end" if token == end else None

    plan = replace(FIXED, window_max=2, pipeline_depth=4)
    simulation = scripted(prompt, prompt[3:], plan, stop=stop)
    result = simulation.run()
    assert result.tokens == [*range(4, 60), end]
    length = simulation.loop.kv_length
    assert max(stage.length for stage in result.stages) > length  # rows beyond the end were computed
    for stage in result.stages:
        stage.trim(length)
        assert stage.holds([*prompt, *range(4, 60)])


def test_the_request_is_finished_only_when_nothing_is_under_way() -> None:
    end = 77
    prompt = [1, 2, 3, *range(4, 60), end, *range(80, 90), 1, 2, 3]
    plan = replace(FIXED, window_max=2, pipeline_depth=4)
    simulation = scripted(prompt, prompt[3:], plan, stop=lambda token: "stop" if token == end else None)
    result = simulation.run()
    assert result.tokens == [*range(4, 60), end]
    assert simulation.loop.statistics.pipeline.stale_windows > 0
    assert simulation.loop.in_flight == 0
    assert len(result.outcomes) == len(result.plans)  # every window was answered


def test_the_context_is_never_exceeded() -> None:
    """C1: a context of 64, a prompt of 50, 40 tokens asked for, drafted from n-grams."""
    prompt = [1, 2, 3, 4, 5] * 10
    for strategy in ("ngram-simple", "ngram-cache", "ngram-suffix"):
        plan = SpeculationPlan(strategy=strategy, window_policy="fixed")
        simulation = scripted(prompt, prompt, plan, max_tokens=40, context_limit=64)
        result = simulation.run()
        assert result.finished == "context"
        assert result.tokens == ([1, 2, 3, 4, 5] * 3)[:14]
        assert max(window.start + len(window.tokens) for window in result.plans) <= 64


def test_no_token_is_asked_for() -> None:
    actions = plain_loop([1], max_tokens=0).start(0.0)
    assert (actions.windows, actions.finished) == ((), "length")


def test_every_committed_token_is_checked_once_and_no_other() -> None:
    checked: list[int] = []

    def stop(token: int) -> StopSignal | None:
        checked.append(token)
        return None

    result = scripted(REPEATED, [4, 5, 6, 90, 91, 1, 2, 3, 4], FIXED, stop=stop).run()
    assert checked == result.tokens


def test_numbers_of_a_session_go_on_in_its_next_request() -> None:
    first = plain_loop([1, 2], max_tokens=1)
    window = only_window(first.start(0.0))
    first.on_reply(answer(window, [3]), 1.0)
    context = LoopContext(
        prompt=[1, 2, 3, 4],
        max_tokens=1,
        context_limit=100,
        first_window=first.next_window,
        first_epoch=first.next_epoch,
    )
    following = only_window(DecodeLoop(SpeculationPlan(), context).start(0.0))
    assert following.window == window.window + 1
    assert following.epoch == window.epoch + 1


def test_a_cancelled_request_drains_what_is_under_way() -> None:
    loop = repeating_loop()
    window = first_drafts(loop)
    actions = loop.cancel(0.5)
    assert (actions.cancel_epoch, actions.finished, actions.windows) == (window.epoch, None, ())
    actions = loop.on_reply(answer(window, [], stale=True), 1.0)
    assert (actions.finished, actions.committed) == ("cancelled", ())


def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    loop = plain_loop([1, 2], max_tokens=1)
    assert loop.on_reply(answer(only_window(loop.start(0.0)), [3]), 1.0).finished == "length"
    actions = loop.cancel(2.0)
    assert (actions.finished, actions.cancel_epoch, loop.stop_reason) == (None, None, "length")


# Replies that are not what was asked for


def test_a_reply_out_of_order_is_an_error() -> None:
    loop = plain_loop([1, 2])
    window = only_window(loop.start(0.0))
    with pytest.raises(ProtocolError, match=f"expected window {window.window} of epoch {window.epoch}"):
        loop.on_reply(answer(replace(window, window=window.window + 1), [3]), 1.0)


def test_a_reply_of_another_epoch_is_an_error() -> None:
    loop = plain_loop([1, 2])
    window = only_window(loop.start(0.0))
    with pytest.raises(ProtocolError, match="epoch"):
        loop.on_reply(answer(replace(window, epoch=window.epoch + 1), [3]), 1.0)


@pytest.mark.parametrize("predictions", [[], [4], [4, 5, 6, 7, 8, 9]])
def test_a_wrong_number_of_predictions_is_an_error(predictions: list[int]) -> None:
    loop = repeating_loop(replace(FIXED, window_max=2))
    window = first_drafts(loop)
    with pytest.raises(ProtocolError, match=f"{len(predictions)} predictions .* expected 3"):
        loop.on_reply(answer(window, predictions), 1.0)


def test_a_stale_answer_to_a_window_that_was_not_cancelled_is_an_error() -> None:
    loop = plain_loop([1, 2])
    with pytest.raises(ProtocolError, match="never cancelled"):
        loop.on_reply(answer(only_window(loop.start(0.0)), [], stale=True), 1.0)


def test_a_reply_without_a_window_is_an_error() -> None:
    loop = plain_loop([1, 2], max_tokens=1)
    window = only_window(loop.start(0.0))
    loop.on_reply(answer(window, [3]), 1.0)
    with pytest.raises(ProtocolError, match="no window is under way"):
        loop.on_reply(answer(window, [3]), 1.0)


# Recovery and settings


def test_after_a_restart_the_newest_committed_token_is_sent_again() -> None:
    loop = plain_loop([1, 2])
    window = only_window(loop.start(0.0))
    loop.on_reply(answer(window, [3]), 1.0)
    again = only_window(loop.restart(2.0))
    assert (again.start, again.tokens) == (2, (3,))
    assert again.epoch > window.epoch
    assert again.window > window.window + 1  # the lost window's number is not used again


def test_a_model_that_cannot_roll_back_is_decoded_plainly() -> None:
    """C14: recurrent state cannot be trimmed; speculation is off, and one line says so."""
    loop = repeating_loop(can_rollback=False)
    assert first_drafts(loop).width == 0
    assert loop.strategy.strategy == "disabled"
    assert "cannot be rolled back" in loop.strategy.note


def test_new_settings_hold_from_the_next_window_on() -> None:
    loop = repeating_loop(SpeculationPlan(strategy="disabled"))
    window = first_drafts(loop)
    loop.update_plan(replace(FIXED, window_max=3))
    following = only_window(loop.on_reply(answer(window, [4]), 1.0))
    assert (window.width, following.width) == (0, 3)


def test_a_rejected_draft_leaves_no_row_on_any_of_three_stages() -> None:
    """B7: the next window is computed from the same text on every stage, which the stages check."""
    mtp = FakeMtp(acceptance=0.0)
    plan = SpeculationPlan(strategy="mtp", window_policy="fixed", draft_max=1)
    simulation = scripted([1, 2], list(range(10, 30)), plan, stages=3, mtp=mtp)
    result = simulation.run()
    assert result.tokens == list(range(10, 30))
    assert simulation.loop.statistics.rejected_windows >= 15
