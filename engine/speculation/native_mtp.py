"""The native MTP proposer: drafts that the last stage sends along with its predictions."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate


class NativeMtp:
    """Keeps the newest usable draft, and the cooldown after a rejected one.

    A rejection inside the MTP prefix starts `reject_cooldown_tokens` plain steps; the drafts of the first
    `suppress_cooldown_draft_limit` of them are not even asked for.
    """

    def __init__(self, plan: SpeculationPlan, statistics: Statistics) -> None:
        self._plan = plan
        self._statistics = statistics
        self._draft: Draft | None = None
        self._cooling = 0
        self._suppress = 0

    @property
    def cooling(self) -> bool:
        """True while only plain steps may be taken."""
        return self._cooling > 0

    @property
    def ready(self) -> bool:
        """Whether there is a draft for the next position."""
        return self._draft is not None

    def offer(self, draft: Draft | None, history: Sequence[int]) -> None:
        """Keep a draft if it is for the next position and follows the newest committed token."""
        usable = draft is not None and draft.position == len(history) and draft.after_token == history[-1]
        self._draft = draft if usable else None

    def take(self, budget: int) -> list[Candidate]:
        """The draft, at most `budget` tokens of it; nothing if that is less than `draft_min`."""
        draft, self._draft = self._draft, None
        if draft is None:
            return []
        tokens = draft.tokens[: min(budget, self._plan.draft_max)]
        if len(tokens) < self._plan.draft_min:
            return []
        known = draft.probabilities if len(draft.probabilities) == len(draft.tokens) else ()
        return [
            Candidate(token, "mtp", depth, known[depth] if known else -1.0)
            for depth, token in enumerate(tokens)
        ]

    def rejected(self) -> None:
        """A draft of ours was wrong."""
        self._draft = None
        if self._plan.reject_cooldown_tokens > 0:
            self._cooling = self._plan.reject_cooldown_tokens
            self._suppress = self._plan.suppress_cooldown_draft_limit
            self._statistics.cooldowns += 1

    def plain_step(self) -> bool:
        """A plain step of the cooldown begins; False when its draft is suppressed."""
        self._cooling -= 1
        if self._suppress > 0:
            self._suppress -= 1
            self._statistics.suppressed_drafts += 1
            return False
        return True
