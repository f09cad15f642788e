"""What the n-gram proposers share: how far a match reaches back, and the text that followed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Protocol

from engine.speculation.stream import NO_CONFIDENCE, Candidate

LONGEST_MATCH = 64  # longer matches say nothing more


class NgramProposer(Protocol):
    """Drafts from the text itself. It reads committed tokens only and never changes them.

    The history it was made with only ever grows; `observe` indexes what is new. `propose` drafts at most
    `budget` tokens to follow history + `pending`, where `pending` is a suffix that is not committed yet.
    """

    def observe(self) -> None: ...

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]: ...


def recent(history: Sequence[int], pending: Sequence[int]) -> list[int]:
    """The last `LONGEST_MATCH` tokens of history + pending."""
    if len(pending) >= LONGEST_MATCH:
        return list(pending[-LONGEST_MATCH:])
    return [*history[-(LONGEST_MATCH - len(pending)) :], *pending]


def reach_back(history: Sequence[int], end: int, tail: Sequence[int], known: int, limit: int) -> int:
    """How many tokens before `end` equal the end of `tail`; `known` of them are known to, at most `limit`."""
    limit = min(limit, end, len(tail))
    length = known
    while length < limit and history[end - length - 1] == tail[-length - 1]:
        length += 1
    return length


def as_candidates(tokens: Iterable[int], evidence: Iterable[int]) -> list[Candidate]:
    """Drafted tokens with the matched length before each; `evidence` may be longer than `tokens`.

    `Candidate(..)` ends in the same call; the Python around that takes longer than finding the tokens.
    """
    fields = zip(tokens, repeat("ngram"), evidence, repeat(NO_CONFIDENCE), strict=False)
    return list(map(tuple.__new__, repeat(Candidate), fields))


def copy_on(history: Sequence[int], start: int, pending: Sequence[int], count: int) -> list[int]:
    """`count` tokens of history + pending from `start` on.

    A copy that reaches the end goes on with what it has copied, as in LZ77: a text that repeats itself every
    few tokens is continued for as long as asked.
    """
    copied = list(history[start : start + count])
    if len(copied) < count:
        copied.extend(pending[: count - len(copied)])
    period = len(copied)
    while len(copied) < count:
        copied.extend(copied[: min(period, count - len(copied))])
    return copied
