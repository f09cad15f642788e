"""Puts a proposal together from the sources that a strategy has.

A composite is zero or more MTP tokens followed by zero or more n-gram tokens, verified as one stream. Each
source answers for its own mistakes: a rejected tail never cools MTP down, and a rejected MTP token never
shortens the tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from engine.config.plan import SpeculationPlan
from engine.speculation.acceptance import Acceptance
from engine.speculation.draft_model import DraftModel
from engine.speculation.native_mtp import NativeMtp
from engine.speculation.ngram_match import NgramProposer
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate

SHORTEST_TAIL = 2
COMPARED = 16  # tokens of a lookup that are weighed against an MTP draft

Joining = Literal["anchored", "appended", "best"]
"""How an n-gram tail joins MTP tokens: only where the lookup begins with every MTP token; drafted after them;
or as `anchored`, and where the two disagree the one with more right tokens to expect is taken alone."""


class TailBudget:
    """Length of the n-gram tail of a composite: grows while composites are accepted whole, starts again small
    (after a pause of `tail_backoff_proposals` proposals) when a tail is rejected."""

    def __init__(self, plan: SpeculationPlan, statistics: Statistics) -> None:
        self._plan = plan
        self._statistics = statistics
        self._tokens = plan.extension_initial
        self._pause = 0
        self._open = 0  # candidates of the composite under way that are not decided yet

    @property
    def open(self) -> bool:
        """True while candidates of a composite are undecided."""
        return self._open > 0

    def next(self) -> int:
        """Budget of the proposal that is being made."""
        if self._pause > 0:
            self._pause -= 1
            return 0
        return self._tokens

    def begin(self, length: int) -> None:
        """A proposal of `length` candidates goes under way; 0 when it is no composite."""
        self._open = length

    def accepted(self) -> None:
        """One of its candidates was right."""
        if self._open:
            self._open -= 1
            if not self._open:
                self._tokens = min(self._tokens + 1, self._plan.extension_max)

    def rejected(self, *, tail: bool) -> None:
        """One of its candidates was wrong."""
        if self._open and tail:
            self._tokens = self._plan.extension_initial
            self._pause = self._plan.tail_backoff_proposals
            self._statistics.tail_backoffs += 1
        self._open = 0


class Drafter:
    """The sources of one strategy. Without any it drafts nothing: plain decoding."""

    def __init__(
        self,
        plan: SpeculationPlan,
        statistics: Statistics,
        acceptance: Acceptance,
        *,
        mtp: NativeMtp | None = None,
        text: NgramProposer | None = None,
        joining: Joining = "anchored",
    ) -> None:
        self.mtp = mtp
        self.text = text
        self._statistics = statistics
        self._acceptance = acceptance
        self._joining = joining
        self._tail_budget = TailBudget(plan, statistics)

    @property
    def cooling(self) -> bool:
        """True while only plain steps may be taken."""
        return self.mtp is not None and self.mtp.cooling

    def may_extend(self, last: Candidate | None) -> bool:
        """Whether the text may go on behind a stream that ends with `last`; never behind bare MTP tokens."""
        if self.text is None:
            return False
        return last.source != "mtp" if last is not None else isinstance(self.text, DraftModel)

    @property
    def composite_open(self) -> bool:
        """True while the tokens of a composite are undecided."""
        return self._tail_budget.open

    def observe(self) -> None:
        """Let the n-gram index catch up with the history."""
        if self.text is not None:
            self.text.observe()

    def propose(self, budget: int) -> list[Candidate]:
        """Candidates to follow the committed text, at most `budget`."""
        self._tail_budget.begin(0)
        if budget <= 0:
            return []
        native = self.mtp.take(budget) if self.mtp is not None else []
        if self.text is None:
            return native
        if not native:
            candidates = self.text.propose((), budget)
            if self.mtp is not None and candidates:
                self._statistics.pure_ngram_proposals += 1
            return candidates
        if self._joining == "best":
            return self._best_of(native, budget)
        tail = self._tail(native, min(budget - len(native), self._tail_budget.next()))
        if len(tail) < SHORTEST_TAIL:
            return native
        self._tail_budget.begin(len(native) + len(tail))
        return native + tail

    def refill(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """More candidates behind `pending`, from the text alone."""
        if self.text is None or budget <= 0:
            return []
        candidates = self.text.propose(pending, budget)
        if candidates:
            self._statistics.pipeline.refills += 1
        else:
            self._statistics.pipeline.refill_misses += 1
        return candidates

    def decided(self, candidate: Candidate, *, right: bool, sent: bool) -> None:
        """The target has decided about a candidate; `sent` if a window held it."""
        self._acceptance.observe(candidate, right)
        if right:
            self._tail_budget.accepted()
        else:
            self._tail_budget.rejected(tail=sent and candidate.source == "ngram")
            if sent and candidate.source == "mtp" and self.mtp is not None:
                self.mtp.rejected()

    def _tail(self, native: Sequence[Candidate], budget: int) -> list[Candidate]:
        assert self.text is not None
        if budget < SHORTEST_TAIL:
            return []
        if self._joining == "appended":
            return self.text.propose([candidate.token for candidate in native], budget)
        return self._anchored(native, budget)[len(native) :]

    def _anchored(self, native: Sequence[Candidate], budget: int) -> list[Candidate]:
        """The lookup from the committed text, if it begins with every MTP token; else nothing."""
        assert self.text is not None
        found = self.text.propose((), len(native) + budget)
        if len(found) <= len(native):
            return []
        if all(a.token == b.token for a, b in zip(native, found, strict=False)):
            self._statistics.anchor_agreements += 1
            return found
        self._statistics.anchor_disagreements += 1
        return []

    def _best_of(self, native: list[Candidate], budget: int) -> list[Candidate]:
        """Where both agree, the text's whole continuation; else the one with more right tokens to expect."""
        assert self.text is not None
        found = self.text.propose((), budget)
        if not found:
            return native
        if all(a.token == b.token for a, b in zip(native, found, strict=False)):
            self._statistics.anchor_agreements += 1
            agreed = [
                Candidate(a.token, "mtp", a.evidence, max(a.confidence, self._acceptance.rate(b).mean))
                for a, b in zip(native, found, strict=False)
            ]
            return agreed + (found[len(native) :] or native[len(found) :])
        self._statistics.anchor_disagreements += 1
        survivals = self._acceptance.survivals
        if sum(survivals(native)) >= sum(survivals(found[:COMPARED])):
            return native
        self._statistics.pure_ngram_proposals += 1
        return found
