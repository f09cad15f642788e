"""Whether windows may follow each other without waiting, for the policies that do no arithmetic of their own.

A window is worth sending ahead when what it saves if its predecessor is accepted outweighs what it costs
otherwise. With c = rate at which a window was accepted whole and its free token was the next candidate,
s = mean first-stage milliseconds and d = mean milliseconds spent after it (Skippy's test):

    c * d  >  1.15 * (1 - c) * max(s, d)

per exact width, over its last 32 windows. Where a width has fewer than 8, those of neighbouring widths and
then pseudo-observations at the rate expected of the candidates stand in, so that copyable text gets going.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.speculation.acceptance import Acceptance
from engine.speculation.costs import CostModel
from engine.speculation.statistics import PipelineCount
from engine.speculation.stream import Candidate

MARGIN = 1.15
REMEMBERED = 32
NEEDED = 8
NEIGHBOURS = 2


class Observation(NamedTuple):
    """One window with a candidate behind it."""

    continued: bool
    first_stage_ms: float
    downstream_ms: float


class PipelineGate:
    """The profile of every width, and the test."""

    def __init__(self, acceptance: Acceptance, costs: CostModel, counters: PipelineCount) -> None:
        self._acceptance = acceptance
        self._costs = costs
        self._counters = counters
        self._profiles: dict[int, deque[Observation]] = {}

    def verified(
        self, width: int, continued: bool | None, first_stage_ms: float, downstream_ms: float
    ) -> None:
        """A window came back; None when nothing could have continued it."""
        if continued is None:
            return
        profile = self._profiles.setdefault(width, deque(maxlen=REMEMBERED))
        profile.append(Observation(continued, first_stage_ms, downstream_ms))

    def permits(self, width: int, candidates: Sequence[Candidate]) -> bool:
        """Whether windows of this width pay when they follow each other; counted."""
        profile = self._pooled(width)
        missing = max(0, NEEDED - len(profile))
        expected = self._acceptance.survivals(candidates[: width + 1])[-1] if missing else 0.0
        rate = (sum(seen.continued for seen in profile) + missing * expected) / (len(profile) + missing)
        first, downstream = self._milliseconds(width, profile)
        permitted = rate * downstream > MARGIN * (1.0 - rate) * max(first, downstream)
        self._counters.permits += permitted
        self._counters.suppressed += not permitted
        return permitted

    def _pooled(self, width: int) -> list[Observation]:
        profile = list(self._profiles.get(width, ()))
        for distance in range(1, NEIGHBOURS + 1):
            for neighbour in (width - distance, width + distance):
                if len(profile) < NEEDED:
                    profile += list(self._profiles.get(neighbour, ()))[len(profile) - NEEDED :]
        return profile

    def _milliseconds(self, width: int, profile: Sequence[Observation]) -> tuple[float, float]:
        if profile:
            count = len(profile)
            return (
                sum(seen.first_stage_ms for seen in profile) / count,
                sum(seen.downstream_ms for seen in profile) / count,
            )
        times = self._costs.times(width + 1)
        return times.first[width + 1], times.loop[width + 1] - times.first[width + 1]
