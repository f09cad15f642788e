"""The candidates that follow the committed text: one proposal, part of it sent, part of it still buffered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from engine.speculation.types import Source


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafted token. `evidence` is the depth of an MTP or model draft (0 first), the matched length of an
    n-gram draft; acceptance is estimated from it."""

    token: int
    source: Source
    evidence: int


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
        return len(self) - self.sent

    def first(self) -> Candidate | None:
        """The candidate for the next position, or None."""
        return self._candidates[self._head] if len(self) else None

    def pending(self) -> list[int]:
        """The tokens of all candidates: the optimistic suffix of the committed text."""
        return [candidate.token for candidate in self._candidates[self._head :]]

    def waiting(self) -> list[Candidate]:
        """The candidates that no window holds yet."""
        return self._candidates[self._head + self.sent :]

    def extend(self, candidates: Sequence[Candidate]) -> None:
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
    return tuple((source, len(list(run))) for source, run in groupby(candidates, key=lambda c: c.source))
