"""The one reducer: `apply(event, state)` turns the events of an engine into what front ends show.

It is pure: the state it is given stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.events import (
    DraftReceived,
    EngineState,
    Event,
    EventsDropped,
    ModelReady,
    NodeState,
    Notice,
    PrefillProgress,
    RequestFinished,
    RequestStarted,
    StageState,
    TokensCommitted,
    WindowDone,
    WindowSent,
)
from engine.view import (
    NOTICES_KEPT,
    Count,
    Rejection,
    Request,
    Series,
    Stage,
    StageTiming,
    Token,
    ViewState,
    Window,
)


def apply(event: Event, state: ViewState) -> ViewState:
    """The state after `event`. Events of an older request than the newest only count in the totals."""
    step = _STEPS.get(type(event))
    return state if step is None else step(event, state)


def _engine(event: EngineState, state: ViewState) -> ViewState:
    return replace(state, engine=event)


def _model(event: ModelReady, state: ViewState) -> ViewState:
    return replace(state, model=event)


def _stage(event: StageState, state: ViewState) -> ViewState:
    old = state.stages.get(event.index)
    stage = Stage(event) if old is None else replace(old, state=event)
    return replace(state, stages={**state.stages, event.index: stage})


def _node(event: NodeState, state: ViewState) -> ViewState:
    return replace(state, nodes={**state.nodes, event.name: event})


def _request_started(event: RequestStarted, state: ViewState) -> ViewState:
    totals = replace(
        state.totals,
        requests=state.totals.requests + 1,
        prompt_tokens=state.totals.prompt_tokens + event.prompt_tokens,
        reused_tokens=state.totals.reused_tokens + event.reused,
    )
    stages = {
        index: replace(stage, timings=Series(), drafting_us=Series()) for index, stage in state.stages.items()
    }
    request = Request(event, prefill_total=event.prompt_tokens - event.reused)
    return replace(state, request=request, stages=stages, totals=totals)


def _prefill(event: PrefillProgress, state: ViewState) -> ViewState:
    request = _current(event.request, state)
    if request is None:
        return state
    return replace(state, request=replace(request, prefill_done=event.done, prefill_total=event.total))


def _window_sent(event: WindowSent, state: ViewState) -> ViewState:
    request = _current(event.request, state)
    if request is None:
        return state
    request = replace(
        request,
        in_flight={**request.in_flight, event.window: event},
        widths=request.widths.extend([event.width]),
        reason=event.reason or request.reason,
        by_source=_by_source(request.by_source, event.sources),
        by_position=_by_position(request.by_position, proposed=event.width),
    )
    totals = replace(state.totals, drafts=state.totals.drafts.plus(event.width, 0))
    return replace(state, request=request, totals=totals)


def _window_done(event: WindowDone, state: ViewState) -> ViewState:
    totals = replace(state.totals, windows=state.totals.windows + 1)
    request = _current(event.request, state)
    sent = None if request is None else request.in_flight.get(event.window)
    if request is None or sent is None:  # its other half was dropped, or belongs to an older request
        return replace(state, totals=totals)
    request = replace(
        request,
        in_flight={number: window for number, window in request.in_flight.items() if number != event.window},
        windows=request.windows.extend([Window(sent, event)]),
        stale_windows=request.stale_windows + event.stale,
        rejections=request.rejections.extend(_rejections(sent, event, request)),
        by_position=_by_position(request.by_position, accepted=event.accepted),
    )
    return replace(state, request=request, stages=_timed(event, state.stages), totals=totals)


def _rejections(sent: WindowSent, done: WindowDone, request: Request) -> list[Rejection]:
    """The rejection that a reply tells of, if any. It may concern the first draft of the next window: the
    last row of one predicts the token after it."""
    if not done.rejected:
        return []
    position, drafted, actual = done.rejected
    behind = [window for number, window in sorted(request.in_flight.items()) if number > sent.window]
    holder: WindowSent | None = sent
    if position >= sent.start + sent.rows:
        holder = behind.pop(0) if behind else None
    token = position - request.started.prompt_tokens
    if holder is None:
        return [Rejection(token, drafted, actual, source="", place=0, width=0, stale=0)]
    place = position - (holder.start + holder.rows - holder.width)
    source = _source_at(holder.sources, place)
    return [Rejection(token, drafted, actual, source, place, holder.width, stale=len(behind))]


def _source_at(sources: Sequence[tuple[str, int]], place: int) -> str:
    """Of the draft at this place of a window."""
    for source, length in sources:
        if place < length:
            return source
        place -= length
    return ""


def _by_source(counts: Mapping[str, Count], sources: Sequence[tuple[str, int]]) -> dict[str, Count]:
    """With the drafts of one more window."""
    result = dict(counts)
    for source, length in sources:
        result[source] = result.get(source, Count()).plus(length, 0)
    return result


def _by_position(counts: tuple[Count, ...], proposed: int = 0, accepted: int = 0) -> tuple[Count, ...]:
    """With the drafts of one more window: that many were sent, or the first so many of it were right."""
    counts += (Count(),) * (max(proposed, accepted) - len(counts))
    return tuple(count.plus(int(i < proposed), int(i < accepted)) for i, count in enumerate(counts))


def _timed(event: WindowDone, stages: Mapping[int, Stage]) -> Mapping[int, Stage]:
    if not event.stages:
        return stages
    result = dict(stages)
    last = max(index for index, *_ in event.stages)
    for index, queue_us, compute_us, kv_tokens in event.stages:
        stage = result.get(index)
        if stage is not None:
            own_us = compute_us - event.draft_us if index == last else compute_us
            timing = StageTiming(event.at, queue_us, own_us)
            result[index] = replace(stage, timings=stage.timings.extend([timing]), kv_tokens=kv_tokens)
    return _drafted(event.draft_us, result) if event.draft_us else result


def _drafted(draft_us: int, stages: Mapping[int, Stage]) -> Mapping[int, Stage]:
    """With one more draft of the last stage, which has the MTP head."""
    if not stages:
        return stages
    last = max(stages)
    stage = replace(stages[last], drafting_us=stages[last].drafting_us.extend([draft_us]))
    return {**stages, last: stage}


def _draft(event: DraftReceived, state: ViewState) -> ViewState:
    request = _current(event.request, state)
    if request is None:
        return state
    request = replace(request, drafts=request.drafts.extend([event]))
    return replace(state, request=request, stages=_drafted(event.draft_us, state.stages))


def _tokens(event: TokensCommitted, state: ViewState) -> ViewState:
    totals = replace(state.totals, tokens=state.totals.tokens + len(event.tokens))
    request = _current(event.request, state)
    if request is None:
        return replace(state, totals=totals)
    by_source = dict(request.by_source)
    drafts = totals.drafts
    for _, origin, _ in event.tokens:
        if origin in by_source:
            by_source[origin] = by_source[origin].plus(0, 1)
            drafts = drafts.plus(0, 1)
    totals = replace(totals, drafts=drafts)
    request = replace(
        request,
        by_source=by_source,
        tokens=request.tokens.extend([Token(*token) for token in event.tokens]),
        tail=event.tail,
        first_token_at=event.at if request.first_token_at is None else request.first_token_at,
        last_token_at=event.at,
    )
    return replace(state, request=request, totals=totals)


def _finished(event: RequestFinished, state: ViewState) -> ViewState:
    request = _current(event.request, state)
    if request is None:
        return state
    return replace(state, request=replace(request, finished=event, in_flight={}))


def _notice(event: Notice, state: ViewState) -> ViewState:
    return replace(state, notices=(*state.notices, event)[-NOTICES_KEPT:])


def _dropped(event: EventsDropped, state: ViewState) -> ViewState:
    dropped = state.totals.events_dropped + event.count
    return replace(state, totals=replace(state.totals, events_dropped=dropped))


def _current(request: str, state: ViewState) -> Request | None:
    """The newest request, if this is its id."""
    return state.request if state.request is not None and state.request.id == request else None


_STEPS: dict[type[Event], Callable[[Any, ViewState], ViewState]] = {
    EngineState: _engine,
    ModelReady: _model,
    StageState: _stage,
    NodeState: _node,
    RequestStarted: _request_started,
    PrefillProgress: _prefill,
    WindowSent: _window_sent,
    WindowDone: _window_done,
    DraftReceived: _draft,
    TokensCommitted: _tokens,
    Notice: _notice,
    RequestFinished: _finished,
    EventsDropped: _dropped,
}
