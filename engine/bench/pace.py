"""How long the rest of a run takes, by what its measurements have taken so far."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

Job = tuple[str, str]
"""Arm and category of a measurement, which decide how long it takes."""


class Pace:
    """Seconds of measurements. What has not been measured yet is expected to take what its arm takes with
    other texts, and an arm that has not had its turn what all others take."""

    def __init__(self) -> None:
        self._jobs: dict[Job, list[float]] = defaultdict(list)
        self._arms: dict[str, list[float]] = defaultdict(list)

    def add(self, job: Job, seconds: float) -> None:
        """A measurement took so long."""
        self._jobs[job].append(seconds)
        self._arms[job[0]].append(seconds)

    def seconds(self, pending: Iterable[Job]) -> float:
        """What measurements will take together; at least one must have been made."""
        jobs = {job: statistics.mean(values) for job, values in self._jobs.items()}
        arms = {arm: statistics.mean(values) for arm, values in self._arms.items()}
        other = statistics.mean(arms.values())
        return sum(jobs.get(job, arms.get(job[0], other)) for job in pending)
