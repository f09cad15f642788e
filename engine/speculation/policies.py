"""How wide a window is and how many may be under way: the interface, and the two simple policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.config.plan import SpeculationPlan
from engine.speculation.gate import PipelineGate
from engine.speculation.statistics import WidthCount
from engine.speculation.stream import Candidate


class Choice(NamedTuple):
    """`width` drafts in the next window, at most `depth` windows under way; `probe`: taken to learn."""

    width: int
    depth: int
    reason: str
    probe: bool = False


PLAIN = Choice(0, 1, "plain")


@dataclass(frozen=True, slots=True)
class Offer:
    """What the loop has to choose from.

    `candidates` follow the committed text (at most `HORIZON` are shown); `sent` of them are under way.
    """

    candidates: Sequence[Candidate]
    sent: int
    refillable: bool  # more candidates may follow
    width_limit: int  # most drafts of one window
    depth_limit: int
    joining: bool = False  # drafts of the head have come for a window of one row that is under way
    awaiting: bool = False  # such drafts are being made


class DraftNeed(NamedTuple):
    """What an MTP draft that comes back with a window would be good for."""

    fresh: float  # chance that the loop stands without candidates after this window
    limit: int  # most tokens that can be of use
    streaming: bool  # other windows follow this one without waiting
    skipped: int  # rows that the head has not been fed: it has to catch up on them first
    remaining: int  # tokens of the answer that may still come


@dataclass(frozen=True, slots=True)
class Verified:
    """What a window that was not stale has shown.

    `continued`: it was accepted whole and the target's next token was the next candidate; None when there was
    no next candidate. `first_stage_ms` and `downstream_ms` split its way.
    """

    width: int
    accepted: int
    committed: int
    rejected: bool
    continued: bool | None
    elapsed_ms: float
    first_stage_ms: float
    downstream_ms: float
    probe: bool


HORIZON = 48


class WindowPolicy(Protocol):
    """Chooses; never sees a token's meaning, only where candidates came from and what windows cost."""

    @property
    def drafts_behind(self) -> bool:
        """Whether MTP drafts are better asked for behind a reply than in it."""

    def choose(self, offer: Offer) -> Choice: ...

    def draft_budget(self, need: DraftNeed) -> int:
        """How many MTP tokens to ask for with a window."""

    def verified(self, window: Verified) -> None: ...


class FixedPolicy:
    """Always as wide as the settings allow."""

    drafts_behind = False

    def __init__(self, plan: SpeculationPlan, gate: PipelineGate) -> None:
        self._plan = plan
        self._gate = gate
        self.width = plan.window_max

    def choose(self, offer: Offer) -> Choice:
        """The current width, and the full depth where the gate permits it."""
        available = len(offer.candidates)
        width = min(self.width, offer.width_limit)
        if not available or not width:
            return PLAIN
        if offer.depth_limit > 1 and (available >= 3 or offer.sent):
            parallel = width if offer.sent else max(1, min(width, available - 2))
            if self._gate.permits(parallel, offer.candidates):
                return Choice(parallel, offer.depth_limit, "pipelined")
        return Choice(width, 1, self._plan.window_policy)

    def draft_budget(self, need: DraftNeed) -> int:
        """Always the whole draft, where nothing else follows."""
        return min(self._plan.draft_max, need.limit) if need.fresh >= 1.0 else 0

    def verified(self, window: Verified) -> None:
        """Tell the gate."""
        self._gate.verified(window.width, window.continued, window.first_stage_ms, window.downstream_ms)


class AdaptivePolicy(FixedPolicy):
    """Starts at 2; one wider after a window that was accepted whole, one narrower after any other."""

    def __init__(self, plan: SpeculationPlan, gate: PipelineGate, counters: WidthCount) -> None:
        super().__init__(plan, gate)
        self._counters = counters
        self.width = min(max(2, plan.window_min), plan.window_max)

    def verified(self, window: Verified) -> None:
        """Adapt the width."""
        super().verified(window)
        if not window.width:
            return
        whole = window.accepted == window.width and not window.rejected
        width = (
            min(self.width + 1, self._plan.window_max)
            if whole
            else max(self.width - 1, self._plan.window_min)
        )
        self._counters.grows += width > self.width
        self._counters.shrinks += width < self.width
        self.width = width
