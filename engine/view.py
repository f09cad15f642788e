"""What front ends show of an engine: the state that `engine.reducer.apply` makes of its events.

States are immutable. Long answers stay cheap: whatever grows with an answer is a `Series`, to which appending
costs O(1) on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar, overload

from engine.events import (
    DraftReceived,
    EngineState,
    ModelReady,
    NodeState,
    Notice,
    RequestFinished,
    RequestStarted,
    StageState,
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
