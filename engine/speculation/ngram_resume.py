"""Going on with a copy that was broken off by an edit.

A renamed identifier or the next number of a list ends a match, and the index needs `ngram_min` tokens before
it finds the place again: three whole loops for each edit. This proposer remembers where the last copy came
from. For a few tokens after it broke off, it goes on

- behind the newest committed token, where that token is found again close to the place, or
- one for one, as if a single token had been replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from engine.speculation.ngram_match import as_candidates, copy_on, reach_back
from engine.speculation.ngram_suffix import NgramSuffix
from engine.speculation.stream import Candidate

LONGEST_EDIT = 8  # tokens since the break, after which the place is given up
REACH = 12  # tokens of the source in which the newest token is looked for
PROPOSED = 8  # an interrupted copy is not trusted for more


class NgramResume:
    """Suffix lookup; where it finds nothing, the copy that was interrupted a few tokens ago."""

    def __init__(self, history: Sequence[int], lookup: NgramSuffix) -> None:
        self._history = history
        self._lookup = lookup
        self._start = 0  # position from which on the last copy was to hold
        self._distance = 0  # how far back its source is; 0: there was none

    def observe(self) -> None:
        """Index what is new in the history."""
        self._lookup.observe()

    def propose(self, pending: Sequence[int], budget: int) -> list[Candidate]:
        """At most `budget` tokens to follow history + pending."""
        position = len(self._history) + len(pending)
        candidates, end = self._lookup.find(pending, budget)
        if candidates:
            if not pending or position - end != self._distance:  # else it is the same copy, refilled
                self._start, self._distance = position, position - end
            return candidates
        return [] if pending else self._resume(min(budget, PROPOSED))

    def _resume(self, budget: int) -> list[Candidate]:
        history, position = self._history, len(self._history)
        source = self._source()
        if source is None:
            return []
        self._start, self._distance = position, position - source
        matched = reach_back(history, source, history[-LONGEST_EDIT:], 0, LONGEST_EDIT)
        tokens = copy_on(history, source, (), budget)
        return as_candidates(tokens, count(matched))

    def _source(self) -> int | None:
        """Where to copy from, None when no copy was broken off lately."""
        position = len(self._history)
        if not self._distance:
            return None
        if self._start == position:  # the same question again
            return position - self._distance
        broken = self._break()
        if broken is None or position - broken > LONGEST_EDIT:
            return None
        return self._place(broken - self._distance, position - broken)

    def _break(self) -> int | None:
        """Where the history first left the last copy, None if it has not."""
        history, distance = self._history, self._distance
        for position in range(self._start, len(history)):
            if history[position] != history[position - distance]:
                return position
        return None

    def _place(self, source: int, since: int) -> int | None:
        """The position to copy from, `since` tokens after the copy from `source` was wrong."""
        history = self._history
        newest, expected = history[-1], source + since
        places = range(source + 1, min(source + 1 + REACH, len(history)))
        found = [place for place in places if history[place - 1] == newest]
        if found:
            return min(found, key=lambda place: abs(place - expected))
        return expected if since == 1 else None
