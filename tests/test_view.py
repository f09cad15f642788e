"""The reducer: pure, cheap for long answers, and right about what it counts."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import (
    REGISTRY,
    DraftReceived,
    EngineState,
    Event,
    EventsDropped,
    NodeState,
    Notice,
    RequestFinished,
    RequestStarted,
    StageState,
    TokensCommitted,
    WindowDone,
    WindowSent,
    from_dict,
)
from engine.reducer import _STEPS, apply
from engine.view import (
    NOTICES_KEPT,
    Count,
    Rejection,
    Series,
    Stage,
    StageTiming,
    Token,
    ViewState,
)


def started(request: str = "r", *, prompt: int = 10, reused: int = 4) -> RequestStarted:
    return RequestStarted(
        at=1.0,
        request=request,
        prompt_tokens=prompt,
        reused=reused,
        strategy="auto",
        seed=0,
        temperature=0.0,
        max_tokens=99,
    )


def sent(window: int, *sources: tuple[str, int], request: str = "r") -> WindowSent:
    width = sum(length for _, length in sources)
    return WindowSent(
        at=2.0,
        request=request,
        window=window,
        epoch=0,
        start=window,
        rows=width + 1,
        width=width,
        sources=sources,
    )


def done(
    window: int, accepted: int, *, width: int = 0, stale: bool = False, request: str = "r"
) -> WindowDone:
    return WindowDone(
        at=3.0,
        request=request,
        window=window,
        epoch=0,
        stale=stale,
        accepted=accepted,
        width=width,
        elapsed_ms=5.0,
        stages=((0, 10, 2000, window), (1, 20, 4000, window)),
    )


def committed(*origins: str) -> TokensCommitted:
    triples = tuple((i, origin, "x") for i, origin in enumerate(origins))
    return TokensCommitted(at=3.0, request="r", window=0, tokens=triples)


def tokens(*texts: str, request: str = "r", at: float = 3.0, tail: str = "") -> TokensCommitted:
    triples = tuple((i, "target", text) for i, text in enumerate(texts))
    return TokensCommitted(at=at, request=request, window=0, tokens=triples, tail=tail)


def view(*events: Event, state: ViewState | None = None) -> ViewState:
    return reduce(lambda old, event: apply(event, old), events, state or ViewState())


def test_every_event_of_an_engine_has_its_step() -> None:
    assert set(_STEPS) == set(REGISTRY.values())


def test_the_newest_step_with_each_node_is_known() -> None:
    def step(name: str, state: str) -> NodeState:
        return NodeState(name=name, url="ws://127.0.0.1:1", state=state)

    state = view(step("den", "dialling"), step("attic", "dialling"), step("den", "ready"))
    assert {name: node.state for name, node in state.nodes.items()} == {"den": "ready", "attic": "dialling"}


def test_a_node_belongs_to_the_stage_that_has_its_layers() -> None:
    den = NodeState(name="den", url="ws://den:1", state="loading", layers=(15, 30))
    shed = NodeState(name="shed", url="ws://shed:1", state="left-out")
    stage = StageState(index=1, state="starting", layers=(15, 30), where="10.0.0.7:9")
    state = view(den, shed, stage)
    assert state.node_of((15, 30)) == den
    assert state.node_of((0, 15)) is None
    assert state.nodes_without_stage == [shed]


def rejected(window: int, position: int, *, accepted: int = 0) -> WindowDone:
    return replace(done(window, accepted), rejected=(position, " wrong", " right"))


def test_a_rejection_says_which_draft_it_was_and_what_was_in_vain() -> None:
    first = replace(sent(0, ("mtp", 2), ("ngram", 3)), start=9)  # rows of the positions 9 to 14
    behind = [replace(sent(number, ("ngram", 4)), start=15) for number in (1, 2)]
    state = view(started(prompt=10), first, *behind, rejected(0, 12, accepted=2))
    assert state.request is not None
    assert list(state.request.rejections) == [
        Rejection(token=2, drafted=" wrong", actual=" right", source="ngram", place=2, width=5, stale=2)
    ]


def test_the_last_row_of_a_window_may_reject_the_first_draft_of_the_next_one() -> None:
    first = replace(sent(0, ("mtp", 1)), start=9)
    second = replace(sent(1, ("ngram", 4)), start=11, rows=4)  # it goes on where the first one ended
    state = view(started(prompt=10), first, second, sent(2), rejected(0, 11, accepted=1))
    assert state.request is not None
    (rejection,) = state.request.rejections
    assert (rejection.source, rejection.place, rejection.width) == ("ngram", 0, 4)
    assert (rejection.token, rejection.stale) == (1, 1)


def test_a_rejection_of_a_window_that_was_dropped_is_known_without_its_source() -> None:
    state = view(started(prompt=10), replace(sent(0), start=9), rejected(0, 10))
    assert state.request is not None
    (rejection,) = state.request.rejections
    assert (rejection.drafted, rejection.source, rejection.width) == (" wrong", "", 0)


def test_drafts_are_counted_by_source_and_by_position() -> None:
    state = view(
        started(),
        sent(0, ("mtp", 2), ("ngram", 3)),
        committed("mtp", "mtp", "ngram", "correction"),
        done(0, 3, width=5),
        sent(1, ("mtp", 1)),
        committed("correction"),
        done(1, 0),
    )
    request = state.request
    assert request is not None
    assert request.by_source == {"mtp": Count(3, 2), "ngram": Count(3, 1)}
    assert request.by_position == (Count(2, 1), Count(1, 1), Count(1, 1), Count(1, 0), Count(1, 0))
    assert request.total == Count(6, 3)
    assert state.totals.drafts == Count(6, 3)


def test_drafts_of_stale_windows_were_sent_and_the_first_may_have_been_right() -> None:
    state = view(
        started(),
        sent(0, ("mtp", 1)),
        sent(1, ("mtp", 2)),
        committed("mtp", "mtp", "correction"),  # the last row of a window judges the first draft of the next
        done(0, 1, width=1),
        done(1, 1, width=2, stale=True),
    )
    request = state.request
    assert request is not None
    assert (request.by_source, request.stale_windows, request.in_flight) == ({"mtp": Count(3, 2)}, 1, {})
    assert request.by_position == (Count(2, 2), Count(1, 0))


def test_windows_are_in_flight_until_they_come_back() -> None:
    state = view(started(), sent(0), sent(1, ("ngram", 4)), sent(2, ("ngram", 2)))
    assert state.request is not None
    assert list(state.request.in_flight) == [0, 1, 2]
    state = view(done(0, 0), done(1, 4), state=state)
    assert state.request is not None
    assert list(state.request.in_flight) == [2]
    assert list(state.request.widths) == [0, 4, 2]
    state = view(RequestFinished(request="r", finish_reason="stop"), state=state)
    assert state.request is not None
    assert state.request.in_flight == {}


def test_the_text_is_that_of_the_tokens_and_their_tail() -> None:
    state = view(started(), tokens("a", ""), tokens("b", tail="c", at=5.0))
    request = state.request
    assert request is not None
    assert request.text == "abc"
    assert list(request.tokens) == [Token(0, "target", "a"), Token(1, "target", ""), Token(0, "target", "b")]
    assert request.ttft_ms == 2000
    assert request.tokens_per_second == 1.0


def test_an_older_request_only_counts_in_the_totals() -> None:
    state = view(started("old"), started("new"), tokens("x", request="old"), sent(0, request="old"))
    state = view(done(0, 0, request="old"), RequestFinished(request="old", finish_reason="stop"), state=state)
    assert state.request is not None
    assert (state.request.id, len(state.request.tokens), state.request.finished) == ("new", 0, None)
    totals = state.totals
    assert (totals.tokens, totals.windows, totals.requests) == (1, 1, 2)
    assert (totals.prompt_tokens, totals.reused_tokens) == (20, 8)


def test_stages_keep_their_times_for_one_request() -> None:
    stage = StageState(index=1, state="ready", layers=(15, 30), where="b:1")
    state = view(stage, started(), sent(0), done(0, 0), sent(1), done(1, 0))
    timing = StageTiming(3.0, 20, 4000)
    assert state.stages == {1: Stage(stage, Series([timing, timing]), kv_tokens=1)}
    assert state.stages[1].compute_ms(0.5) == 4.0
    busy = StageState(index=1, state="busy", layers=(15, 30), where="b:1")
    assert view(busy, state=state).stages[1].timings == state.stages[1].timings
    assert len(view(started("next"), state=state).stages[1].timings) == 0


def drafted(window: int, draft_us: int, request: str = "r") -> DraftReceived:
    return DraftReceived(at=4.0, request=request, window=window, epoch=0, drafted=2, draft_us=draft_us)


def two_stages() -> list[Event]:
    return [StageState(index=i, state="ready", layers=(15 * i, 15 * i + 15), where="b:1") for i in range(2)]


def test_what_the_last_stage_drafts_is_told_apart_from_its_windows_whether_in_the_reply_or_behind_it() -> (
    None
):
    in_reply = replace(done(0, 0), drafted=1, draft_us=1500)  # of the 4000 µs of the last stage
    state = view(*two_stages(), started(), sent(0), in_reply, sent(1), done(1, 0), drafted(1, 2500))
    first, last = state.stages[0], state.stages[1]
    assert [timing.compute_us for timing in last.timings] == [2500, 4000]
    assert list(last.drafting_us) == [1500, 2500]
    assert last.draft_ms() == 2.5
    assert [timing.compute_us for timing in first.timings] == [2000, 2000]
    assert (list(first.drafting_us), first.draft_ms()) == ([], 0.0)
    assert state.request is not None
    assert list(state.request.drafts) == [drafted(1, 2500)]


def test_drafts_behind_replies_are_those_of_the_current_request() -> None:
    state = view(
        *two_stages(), started("old"), drafted(0, 900, "old"), started("new"), drafted(0, 700, "old")
    )
    assert state.request is not None
    assert (len(state.request.drafts), len(state.stages[1].drafting_us)) == (0, 0)


def test_a_draft_that_follows_in_a_window_of_its_own_is_judged_by_the_window_of_the_token() -> None:
    token = replace(sent(0), start=9)
    drafts = [replace(sent(n, ("mtp", 1)), start=9 + n, rows=1) for n in (1, 2)]
    right = view(started(prompt=10), token, *drafts, committed("mtp"), done(0, 0), done(1, 1, width=1))
    assert right.request is not None
    assert (right.request.by_source, right.request.by_position) == ({"mtp": Count(2, 1)}, (Count(2, 1),))
    wrong = view(started(prompt=10), token, *drafts, rejected(0, 10))
    assert wrong.request is not None
    (rejection,) = wrong.request.rejections
    assert (rejection.source, rejection.place, rejection.width, rejection.stale) == ("mtp", 0, 1, 1)


def test_notices_are_bounded_and_drops_are_counted() -> None:
    state = view(*(Notice(level="info", code="n", message=str(i)) for i in range(NOTICES_KEPT + 5)))
    assert [state.notices[0].message, len(state.notices)] == ["5", NOTICES_KEPT]
    state = view(EventsDropped(count=3), EventsDropped(count=4), EngineState(state="ready"), state=state)
    assert state.totals.events_dropped == 7
    assert state.engine == EngineState(state="ready")


def test_an_event_leaves_the_state_before_it_as_it_was() -> None:
    before = view(started(), tokens("a"))
    one, other = view(tokens("b"), state=before), view(tokens("c"), tokens("d"), state=before)
    texts = [state.request.text for state in (before, one, other) if state.request is not None]
    assert texts == ["a", "ab", "acd"]


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=6), st.integers(0, 5), st.lists(st.integers()))
def test_a_series_is_like_a_list_also_where_it_branches(
    parts: list[list[int]], branch: int, more: list[int]
) -> None:
    history = [Series[int]()]
    for part in parts:
        history.append(history[-1].extend(part))
    chosen = history[min(branch, len(parts))]
    expected = [item for part in parts[:branch] for item in part]
    branched = chosen.extend(more)
    assert list(branched) == expected + more
    assert list(chosen) == expected
    assert list(history[-1]) == [item for part in parts for item in part]
    assert branched[:] == expected + more
    if branched:
        assert branched[-1] == (expected + more)[-1]
        assert branched[0] == (expected + more)[0]
    with pytest.raises(IndexError):
        branched[len(branched)]


def test_a_long_answer_copies_nothing() -> None:
    state = view(started())
    first = state.request
    assert first is not None
    for i in range(2000):
        state = view(sent(i, ("mtp", 1)), done(i, 1, width=1), tokens("x"), state=state)
    request = state.request
    assert request is not None
    assert len(request.tokens) == len(request.windows) == len(request.widths) == 2000
    # One list each for all 2000 states: what grows with an answer is shared, never copied.
    assert request.tokens._items is first.tokens._items
    assert request.windows._items is first.windows._items
    assert request.widths._items is first.widths._items


@pytest.mark.parametrize(
    "event", [started(), sent(1, ("mtp", 2)), done(0, 1), drafted(0, 9), tokens("a", tail="b")]
)
def test_events_survive_json(event: Event) -> None:
    import orjson

    assert from_dict(orjson.loads(orjson.dumps(event.to_dict()))) == event
