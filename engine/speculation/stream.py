"""The candidates that follow the committed text: one proposal, part of it sent, part of it still buffered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from engine.speculation.types import Source

NO_CONFIDENCE = -1.0


class Candidate(NamedTuple):
    """A drafted token. What is known of it is what its chance of acceptance is estimated from.

    `evidence`: depth of an MTP or model draft (0 first), or the matched length of an n-gram draft, counting
    the candidates before it. `confidence`: the proposer's own probability, negative when it gives none.
    """

    token: int
    source: Source
    evidence: int
    confidence: float = NO_CONFIDENCE


class Stream:
    """Candidates in order of position; the first follows the newest committed token.

    `sent` of them are in windows under way. Committing a token that equals the first candidate moves the
    stream on by one; anything else clears it.
    """

    def __init__(self) -> None:
        self._candidates: list[Candidate] = []
        self._head = 0
        self.sent = 0

    def __len__(self) -> int:
        return len(self._candidates) - self._head

    @property
    def unsent(self) -> int:
        """Candidates that no window holds yet."""
        return len(self._candidates) - self._head - self.sent

    def first(self) -> Candidate | None:
        """The candidate for the next position, or None."""
        return self._candidates[self._head] if self._head < len(self._candidates) else None

    def last(self) -> Candidate | None:
        """The last candidate, or None."""
        return self._candidates[-1] if self._head < len(self._candidates) else None

    def ahead(self, limit: int) -> list[Candidate]:
        """At most `limit` candidates from the next position on, sent or not."""
        return self._candidates[self._head : self._head + limit]

    def pending(self) -> list[int]:
        """The tokens of all candidates: the optimistic suffix of the committed text."""
        return [candidate.token for candidate in islice(self._candidates, self._head, None)]

    def extend(self, candidates: Iterable[Candidate]) -> None:
        """Append candidates behind the ones that are here."""
        self._candidates.extend(candidates)

    def take(self, count: int) -> list[Candidate]:
        """Mark the next `count` unsent candidates as sent and return them."""
        start = self._head + self.sent
        taken = self._candidates[start : start + count]
        self.sent += len(taken)
        return taken

    def advance(self) -> None:
        """The first candidate was committed."""
        self._head += 1
        self.sent = max(0, self.sent - 1)

    def clear(self) -> None:
        """Drop every candidate."""
        self._candidates.clear()
        self._head = 0
        self.sent = 0


def spans(candidates: Sequence[Candidate]) -> tuple[tuple[Source, int], ...]:
    """(source, number of tokens) of the runs in `candidates`, in order."""
    runs = groupby(candidates, key=attrgetter("source"))
    return tuple((source, sum(1 for _ in run)) for source, run in runs)
