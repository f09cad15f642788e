"""The one reducer: `apply(event, state)` turns the events of an engine into what front ends show.

It is pure: the state it is given stays as it is. Long answers stay cheap: whatever grows with an answer is a
`Series`, to which appending costs O(1) on average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, TypeVar, overload

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

T = TypeVar("T")

NOTICES_KEPT = 200


class Series(Sequence[T], Generic[T]):
    """An immutable sequence with a cheap `extend`.

    Series made from one another share a list and differ in how much of it they see. Only the longest one
    may grow the list in place; extending any other copies first. A chain of states, each made from the one
    before, therefore never copies.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Sequence[T] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def extend(self, items: Sequence[T]) -> Series[T]:
        """A series with `items` after those of this one."""
        result: Series[T] = Series.__new__(Series)
        result._items = self._items if len(self._items) == self._length else self._items[: self._length]
        result._items.extend(items)
        result._length = self._length + len(items)
        return result

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return [self._items[i] for i in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index % self._length]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and list(self) == list(other)

    def __hash__(self) -> int:
        raise TypeError("a Series is not hashable")

    def __repr__(self) -> str:
        return f"Series({list(self)!r})"


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer, and where it came from."""

    id: int
    origin: str
    text: str


@dataclass(frozen=True, slots=True)
class Count:
    """Drafts that were sent in windows, and those of them that were committed, as in the JSON result."""

    proposed: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Acceptance rate, 0 when nothing was sent."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def plus(self, proposed: int, accepted: int) -> Count:
        return Count(self.proposed + proposed, self.accepted + accepted)


@dataclass(frozen=True, slots=True)
class Window:
    """A window that has come back."""

    sent: WindowSent
    done: WindowDone


@dataclass(frozen=True, slots=True)
class Rejection:
    """A draft that the target did not confirm, and what that cost."""

    token: int  # of the answer, from 0: where the draft would have stood
    drafted: str
    actual: str  # what the target said instead
    source: str  # of the draft; empty if the window that held it is not known
    place: int  # among the drafts of that window, from 0
    width: int  # drafts of that window: those behind this one were in vain
    stale: int  # windows that had been sent behind it, in vain as well


@dataclass(frozen=True, slots=True)
class StageTiming:
    """What one window cost on one stage, without any drafting in its reply."""

    at: float
    queue_us: int
    compute_us: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its last state, and its timings during the current request."""

    state: StageState
    timings: Series[StageTiming] = field(default_factory=Series)
    kv_tokens: int = 0
    drafting_us: Series[int] = field(default_factory=Series)  # of each draft, in a reply or behind one

    def compute_ms(self, fraction: float, last: int = 200) -> float:
        """A quantile of the last compute times, in milliseconds; 0 without any."""
        times = sorted(timing.compute_us for timing in self.timings[-last:])
        return quantile(times, fraction) / 1000

    def draft_ms(self, last: int = 200) -> float:
        """The median time of the last drafts, in milliseconds; 0 where the stage has drafted nothing."""
        return quantile(sorted(self.drafting_us[-last:]), 0.5) / 1000


@dataclass(frozen=True, slots=True)
class Request:
    """The newest request."""

    started: RequestStarted
    prefill_done: int = 0
    prefill_total: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    tokens: Series[Token] = field(default_factory=Series)
    tail: str = (
        ""  # text after the last token, held back until it was sure that no stop string begins with it
    )
    in_flight: Mapping[int, WindowSent] = field(default_factory=dict)
    windows: Series[Window] = field(default_factory=Series)
    drafts: Series[DraftReceived] = field(default_factory=Series)  # that came behind replies
    widths: Series[int] = field(default_factory=Series)  # of every window sent, in draft tokens
    by_source: Mapping[str, Count] = field(default_factory=dict)
    by_position: tuple[Count, ...] = ()
    stale_windows: int = 0
    rejections: Series[Rejection] = field(default_factory=Series)
    reason: str = ""  # of the policy, for the newest window
    finished: RequestFinished | None = None

    @property
    def id(self) -> str:
        return self.started.request

    @property
    def text(self) -> str:
        """The answer so far. Costs its length: while streaming, read `tokens` from where you are."""
        return "".join(token.text for token in self.tokens) + self.tail

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token, in milliseconds."""
        return None if self.first_token_at is None else (self.first_token_at - self.started.at) * 1000

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed after the first token; 0 while unknown."""
        if self.first_token_at is None or self.last_token_at is None:
            return 0.0
        elapsed = self.last_token_at - self.first_token_at
        return (len(self.tokens) - 1) / elapsed if elapsed > 0 else 0.0

    @property
    def total(self) -> Count:
        """Drafts of all sources together."""
        counts = self.by_source.values()
        return Count(sum(c.proposed for c in counts), sum(c.accepted for c in counts))


@dataclass(frozen=True, slots=True)
class Totals:
    """Over everything this front end has seen."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    tokens: int = 0
    windows: int = 0
    drafts: Count = Count()
    events_dropped: int = 0


@dataclass(frozen=True, slots=True)
class ViewState:
    """All that a front end shows."""

    engine: EngineState | None = None
    model: ModelReady | None = None
    stages: Mapping[int, Stage] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)  # the newest step with each, by name
    request: Request | None = None
    notices: tuple[Notice, ...] = ()  # the newest NOTICES_KEPT
    totals: Totals = Totals()

    def node_of(self, layers: tuple[int, int]) -> NodeState | None:
        """The node that serves these layers."""
        return next((node for node in self.nodes.values() if node.layers == layers), None)

    @property
    def nodes_without_stage(self) -> list[NodeState]:
        """Nodes whose layers no stage has: not chosen yet, or left out."""
        served = {stage.state.layers for stage in self.stages.values()}
        return [node for node in self.nodes.values() if node.layers not in served]


def quantile(ascending: Sequence[float], fraction: float) -> float:
    """The nearest-rank quantile of sorted values; 0 without any."""
    if not ascending:
        return 0.0
    return ascending[min(int(fraction * len(ascending)), len(ascending) - 1)]


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
