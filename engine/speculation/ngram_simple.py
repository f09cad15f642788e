"""Prompt lookup: copy what followed the newest earlier occurrence of the last n tokens.

The rule is that of llama.cpp's `ngram-simple`, with an index in place of the scan, and copies that may run on
into themselves (`copy_on`) in place of its minimum length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from engine.speculation.ngram_match import LONGEST_MATCH, as_candidates, copy_on, reach_back, recent
from engine.speculation.stream import Candidate


class NgramSimple:
    """`NgramProposer` with matches of at least `size` tokens."""

    def __init__(self, history: Sequence[int], *, size: int, max_proposal: int) -> None:
        self._history = history
        self._size = size
        self._max_proposal = max_proposal
        self._newest: dict[tuple[int, ...], int] = {}  # n-gram -> position after its newest occurrence
        self._indexed = size  # n-grams that end before this position are in the index

    def observe(self) -> None:
        """Index the n-grams that have got a token after them."""
        history, size, newest = self._history, self._size, self._newest
        for end in range(self._indexed, len(history)):
            newest[tuple(history[end - size : end])] = end
        self._indexed = max(self._indexed, len(history))

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """At most `budget` tokens to follow history + pending."""
        self.observe()
        tail = recent(self._history, pending)
        if len(tail) < self._size:
            return []
        end = self._newest.get(tuple(tail[-self._size :]))
        if end is None:
            return []
        matched = reach_back(self._history, end, tail, self._size, LONGEST_MATCH)
        tokens = copy_on(self._history, end, pending, min(budget, self._max_proposal))
        return as_candidates(tokens, count(matched))
