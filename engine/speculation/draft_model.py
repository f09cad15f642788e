"""Drafts of a small model of the same vocabulary, which the coordinator runs beside the loop."""

from __future__ import annotations

from collections.abc import Sequence

from engine.speculation.stream import Candidate
from engine.speculation.types import DraftRunner


class DraftModel:
    """A runner seen as a proposer."""

    def __init__(self, history: Sequence[int], runner: DraftRunner, max_proposal: int) -> None:
        self._history = history
        self._runner = runner
        self._max_proposal = max_proposal

    def observe(self) -> None:
        """The runner follows the history by itself."""

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """At most `budget` tokens that the runner has ready to follow history + pending."""
        tokens = self._runner.drafted(self._history, pending, min(budget, self._max_proposal))
        return [Candidate(token, "draft", len(pending) + ahead) for ahead, token in enumerate(tokens)]
