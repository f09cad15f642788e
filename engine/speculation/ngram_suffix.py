"""Suffix lookup: copy what followed the longest match of the end of the text, up to 64 tokens back.

An incremental index maps every seed (the last `min(ngram_min, 8)` tokens) to the positions after it. A lookup
compares the newest occurrences backwards and keeps the longest match, the newest among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from engine.speculation.ngram_match import as_candidates, copy_on, reach_back, recent
from engine.speculation.stream import Candidate

LONGEST_SEED = 8
MOST_EXAMINED = 64


class NgramSuffix:
    """`NgramProposer` with matches of `shortest` to `longest` tokens."""

    def __init__(self, history: Sequence[int], *, shortest: int, longest: int, max_proposal: int) -> None:
        self._history = history
        self._shortest = shortest
        self._longest = longest
        self._max_proposal = max_proposal
        self._seed = min(shortest, LONGEST_SEED)
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._indexed = self._seed  # seeds that end before this position are in the index

    def observe(self) -> None:
        """Index the seeds that have got a token after them."""
        history, seed, ends = self._history, self._seed, self._ends
        for end in range(self._indexed, len(history)):
            key = tuple(history[end - seed : end])
            known = ends.get(key)
            if known is None:
                ends[key] = [end]
            else:
                known.append(end)
        self._indexed = max(self._indexed, len(history))

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """At most `budget` tokens to follow history + pending, and no more than twice the matched length."""
        return self.find(pending, budget)[0]

    def find(self, pending: Sequence[int], budget: int) -> tuple[list[Candidate], int]:
        """The proposal, and the position it was copied from."""
        self.observe()
        tail = recent(self._history, pending)
        end, matched = self._longest_match(tail)
        if matched < self._shortest:
            return [], 0
        length = min(budget, self._max_proposal, max(4, 2 * matched))
        tokens = copy_on(self._history, end, pending, length)
        return as_candidates(tokens, count(matched)), end

    def _longest_match(self, tail: Sequence[int]) -> tuple[int, int]:
        """(position after the match, its length); length 0 when the seed never occurred."""
        history, seed = self._history, self._seed
        best_end, best = 0, 0
        if len(tail) < seed:
            return best_end, best
        for end in islice(reversed(self._ends.get(tuple(tail[-seed:]), ())), MOST_EXAMINED):
            if best:  # only a match longer than the best is of use: one comparison tells
                if end <= best or history[end - best - 1 : end] != tail[-best - 1 :]:
                    continue
                known = best + 1
            else:
                known = seed
            best_end, best = end, reach_back(history, end, tail, known, self._longest)
            if best >= min(self._longest, len(tail)):
                break
        return best_end, best
