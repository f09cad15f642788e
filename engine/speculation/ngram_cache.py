"""Drafting from n-gram counts, as llama.cpp's `ngram-cache` does it.

Three tiers are asked in turn: the **context** (this request's own text, lax thresholds), **dynamic** (earlier
answers, strict thresholds) and **static** (a text corpus, 2-grams only). The first two go from the longest
n-gram to the shortest; the static counts weigh their candidates.

Most tokens follow one of the largest n-grams of the context, and so does the token after them. Such runs are
read off the links between these n-grams, without a lookup for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.speculation.ngram_counts import STATIC_NGRAM, Followers, NgramCounts
from engine.speculation.ngram_match import as_candidates
from engine.speculation.stream import Candidate


class Thresholds(NamedTuple):
    """What n-grams of 1, 2, 3 and 4 tokens need to draft: samples, and share in percent."""

    samples: tuple[int, int, int, int]
    percent: tuple[int, int, int, int]


LAX = Thresholds((2, 2, 1, 1), (66, 50, 50, 50))
STRICT = Thresholds((4, 3, 2, 2), (75, 66, 66, 66))
STATIC_WEIGHT = 100


class NgramCache:
    """`NgramProposer` over counts. `dynamic` and `static` are read, never written."""

    def __init__(
        self,
        history: Sequence[int],
        *,
        smallest: int,
        largest: int,
        max_proposal: int,
        dynamic: NgramCounts | None = None,
        static: NgramCounts | None = None,
    ) -> None:
        self.context = NgramCounts(smallest, largest)
        self._history = history
        self._max_proposal = max_proposal
        self._dynamic = dynamic
        self._static = static
        self._counted = 0

    def observe(self) -> None:
        """Count the tokens that are new in the history."""
        self.context.count(self._history, self._counted)
        self._counted = len(self._history)

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """At most `budget` tokens to follow history + pending; each must meet the thresholds of a tier."""
        self.observe()
        largest = self.context.sizes[-1]
        text = [*self._history[-max(largest, STATIC_NGRAM) :], *pending]
        begin, end = len(text), len(text) + min(budget, self._max_proposal)
        evidence: list[int] = []
        while len(text) < end:
            tokens, size = self._run(text, end - len(text)), largest
            if not tokens:
                token, size = self._next(text)
                if size == 0:
                    break
                tokens = [token]
            matched = size + len(evidence)
            evidence.extend(range(matched, matched + len(tokens)))
            text.extend(tokens)
        return as_candidates(text[begin:], evidence)

    def _run(self, text: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that `_next` would give one after the other, as far as links lead."""
        size = self.context.sizes[-1]
        tokens: list[int] = []
        if self._static is not None:  # its counts may prefer other followers
            return tokens
        samples, percent = LAX.samples[size - 1], LAX.percent[size - 1]
        followers = self.context.get(tuple(text[-size:]))
        while followers is not None and len(tokens) < limit:
            total = followers.total
            if total < samples or 100 * followers.best_count < percent * total:
                break
            tokens.append(followers.best)
            followers = followers.after
        return tokens

    def _next(self, text: list[int]) -> tuple[int, int]:
        """(token, size of the n-gram that drafts it); size 0 when no tier does."""
        weights = self._static.get(tuple(text[-STATIC_NGRAM:])) if self._static else None
        found = self._best(self.context, LAX, text, weights)
        if not found[1] and self._dynamic is not None:
            found = self._best(self._dynamic, STRICT, text, weights)
        if not found[1] and weights is not None and _enough(weights, weights.best_count, LAX, STATIC_NGRAM):
            found = (weights.best, STATIC_NGRAM)
        return found

    def _best(
        self, tier: NgramCounts, thresholds: Thresholds, text: list[int], weights: Followers | None
    ) -> tuple[int, int]:
        for size in reversed(self.context.sizes):
            if size > len(text):
                continue
            followers = tier.get(tuple(text[-size:]))
            if followers is None:
                continue
            token, count = _heaviest(followers, weights)
            if _enough(followers, count, thresholds, size):
                return token, size
        return -1, 0


def _heaviest(followers: Followers, weights: Followers | None) -> tuple[int, int]:
    """The follower with the largest count, weighed by how often the static corpus has it; and its count."""
    if weights is None:
        return followers.best, followers.best_count
    static = weights.counts

    def weight(token: int) -> int:
        return followers.counts[token] * (STATIC_WEIGHT * static[token] if token in static else 1)

    token = max(followers.counts, key=weight)
    return token, followers.counts[token]


def _enough(followers: Followers, count: int, thresholds: Thresholds, size: int) -> bool:
    samples, percent = thresholds.samples[size - 1], thresholds.percent[size - 1]
    return followers.total >= samples and 100 * count >= percent * followers.total
