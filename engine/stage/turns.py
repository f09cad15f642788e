"""A queue from which several lanes are served in turn.

One lane may have a long prompt waiting, another the single row of its next token. Each lane's jobs come out
in their order, but a lane whose job was taken goes behind all others: a token waits for at most one job of
each other lane, however many they have queued.
"""

from __future__ import annotations

import queue
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Turns(Generic[Job]):
    """Any thread puts, one thread takes."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
        self._lanes: OrderedDict[int, deque[Job]] = OrderedDict()  # of the thread that takes, next one first
        self._held = 0  # jobs in `_lanes`
        self._ended = False

    def __len__(self) -> int:
        """Jobs that wait."""
        return self._arrived.qsize() + self._held

    def put(self, lane: int, job: Job) -> None:
        """Queue a job of a lane."""
        self._arrived.put((lane, job))

    def end(self) -> None:
        """Let `take` return None, whatever is still queued."""
        self._arrived.put(None)

    def take(self) -> Job | None:
        """The next job, waited for; None after `end`."""
        self._sort()
        if self._ended:
            return None
        number, jobs = self._lanes.popitem(last=False)
        job = jobs.popleft()
        self._held -= 1
        if jobs:
            self._lanes[number] = jobs
        return job

    def _sort(self) -> None:
        """Bring what has arrived into the queues of the lanes; wait only if all of them are empty."""
        while not self._ended:
            if self._lanes and self._arrived.empty():
                return
            arrival = self._arrived.get()
            if arrival is None:
                self._ended = True
                return
            number, job = arrival
            self._lanes.setdefault(number, deque()).append(job)
            self._held += 1
