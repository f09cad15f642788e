"""What goes into the speculative loop and what comes out of it.

Positions count tokens of the session from 0, times are seconds on the caller's monotonic clock, durations
that are reported are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.speculation.costs import CostModel
from engine.speculation.ngram_counts import NgramCounts

StopSignal = Literal["end", "stop"]
"""`end`: an end-of-generation token, no part of the text; `stop`: the token completes a stop string."""

StopCheck = Callable[[int], StopSignal | None]

FinishReason = Literal["stop", "length", "context", "cancelled"]

Origin = Literal["target", "mtp", "ngram", "draft", "correction", "free"]
"""Where a committed token came from: a plain step, an accepted draft of that source, the target's token in
place of a wrong draft, or the target's token after a fully accepted window."""

Source = Literal["mtp", "ngram", "draft"]
SOURCES: tuple[Source, ...] = ("mtp", "ngram", "draft")


class DraftRunner(Protocol):
    """Runs a draft model of the same vocabulary. It drafts ahead, also beyond what was asked for."""

    def drafted(self, history: Sequence[int], pending: Sequence[int], budget: int) -> Sequence[int]:
        """The tokens, at most `budget`, that it has drafted so far to follow history + pending.

        Never blocks. When there are none yet it goes on from there, and its owner calls
        `DecodeLoop.drafts_ready` when there are. `history` must be read before the call returns.
        """


def never_stop(token: int) -> StopSignal | None:
    """A `StopCheck` for answers that end by length alone."""
    return None


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What one request brings along.

    Nothing is shared with another request unless it is given here: a model of the `costs` (a property of the
    machines), a draft model's runner, n-gram counts (which are only read).
    `stop` is called exactly once for every token that is about to be committed, in order, and for no other.
    Window and epoch numbers of a session must never be reused (a stage remembers which epochs were
    cancelled), so the next request of a session starts from the `next_window` and `next_epoch` of the last.
    """

    prompt: Sequence[int]  # every token of the prompt; the last one is the first window's row
    max_tokens: int
    context_limit: int  # positions of a session: prompt and answer together never exceed it
    window_rows: int = 1  # most rows of one window that every stage allows
    native_mtp: bool = False
    drafts_behind: bool = False  # MTP drafts may come behind their reply: other stages compute meanwhile
    can_rollback: bool = True
    stop: StopCheck = never_stop
    costs: CostModel | None = None
    draft_runner: DraftRunner | None = None
    dynamic_ngrams: NgramCounts | None = None
    static_ngrams: NgramCounts | None = None
    first_window: int = 0
    first_epoch: int = 0
    rows_not_drafted: int = 0  # that the MTP head has to catch up on: new ones of the prompt, and older ones


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A window to send: `tokens` are its rows, the first at position `start`.

    `width` counts the drafts among the rows and `sources` says where they came from, in order. `in_flight`
    is the number of windows under way, this one included.
    """

    window: int
    epoch: int
    start: int
    tokens: tuple[int, ...]
    draft_budget: int
    width: int
    sources: tuple[tuple[Source, int], ...]
    in_flight: int
    reason: str
    draft_later: bool = False  # the draft is to come behind the reply


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """A token of the answer. `ends` marks an end-of-generation token: committed, but no part of the text."""

    token: int
    origin: Origin
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """The first wrong draft of an epoch: what was drafted for `position` and what the target says."""

    position: int
    drafted: int
    actual: int


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """What became of a window. `rejected` may concern the first draft of the window after it."""

    window: int
    epoch: int
    width: int
    accepted: int
    rejected: Rejection | None
    stale: bool
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Actions:
    """What the caller has to do now, in this order: cancel the epoch, send the windows, emit the tokens.

    `finished` is set once, when the answer is complete and nothing of it is in flight any more.
    """

    cancel_epoch: int | None = None
    windows: tuple[WindowPlan, ...] = ()
    committed: tuple[CommittedToken, ...] = ()
    done: WindowOutcome | None = None
    finished: FinishReason | None = None
