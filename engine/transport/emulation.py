"""Emulated network delay, to rehearse a split over distance on one machine.

Each direction of a link is a line of its own: a frame first waits for its turn to be put on the wire
(`mbps`), then travels for half the round trip plus jitter. Frames overlap in flight and keep their order.
Heartbeats travel for as long but never wait behind other frames' bytes, so a slow line does not look like a
dead peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.protocol.messages import LinkEmulation

LEAD_STEP = 20e-6  # seconds by which the lead of a line follows each late or early arrival
LEAD_MAX = 1e-3


class Schedule:
    """When each frame of one direction arrives. Pure: the caller gives the time (seconds)."""

    def __init__(self, emulation: LinkEmulation, salt: str) -> None:
        # Salted, or all links of a run would jitter in step and cancel out what is to be rehearsed.
        self._random = random.Random(f"{emulation.seed}/{salt}")
        self._travel = emulation.rtt_ms / 2e3
        self._jitter = emulation.jitter_ms / 2e3
        self._seconds_per_byte = 8e-6 / emulation.mbps if emulation.mbps > 0 else 0.0
        self._line_free = 0.0
        self._last_arrival = 0.0

    def arrival(self, now: float, size: int) -> float:
        """Arrival of a frame of `size` bytes handed over now: never before the one handed over earlier."""
        self._line_free = max(self._line_free, now) + size * self._seconds_per_byte
        self._last_arrival = max(self._last_arrival, self._line_free + self._delay())
        return self._last_arrival

    def heartbeat_arrival(self, now: float) -> float:
        """Arrival of a frame that takes no turn on the line."""
        return now + self._travel

    def backlog(self, now: float) -> float:
        """Bytes that still wait for the line."""
        return (self._line_free - now) / self._seconds_per_byte if self._line_free > now else 0.0

    def seconds_until(self, now: float, backlog: float) -> float:
        """Seconds until at most `backlog` bytes wait for the line."""
        return max(0.0, self._line_free - now - backlog * self._seconds_per_byte)

    def _delay(self) -> float:
        """Half the round trip, plus up to half the jitter either way."""
        if not self._jitter:
            return self._travel
        return max(0.0, self._travel + self._random.uniform(-self._jitter, self._jitter))


class PreciseTimer:
    """Calls back from a thread of its own, to within about 0.1 ms: an asyncio timer rounds up to 1 ms."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` on the timer's thread at `when` on the monotonic clock."""
        with self._wake:
            heapq.heappush(self._heap, (when, next(self._count), callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emulated-delay", daemon=True)
                self._thread.start()
            elif self._heap[0][0] == when:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._heap or (wait := self._heap[0][0] - time.monotonic()) > 0:
                    self._wake.wait(wait if self._heap else None)
                callback = heapq.heappop(self._heap)[2]
            callback()


_TIMER = PreciseTimer()


class DelayLine:
    """One direction of an emulated link: frames go in, and come out later through `deliver` on the loop.

    Waking a thread and then the loop takes a few tenths of a millisecond. The line learns how much and asks
    to be woken that much earlier, so that the delay is right on average.
    """

    def __init__(self, emulation: LinkEmulation, salt: str, deliver: Callable[[bytes], None]) -> None:
        self._schedule = Schedule(emulation, salt)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[tuple[float, bytes]] = deque()
        self._lead = 0.0
        self._closed = False

    @property
    def backlog(self) -> float:
        """Bytes that wait for their turn on the line; those in flight do not count."""
        return self._schedule.backlog(time.monotonic())

    def seconds_until(self, backlog: float) -> float:
        """Seconds until at most `backlog` bytes wait."""
        return self._schedule.seconds_until(time.monotonic(), backlog)

    def push(self, frame: bytes, *, heartbeat: bool) -> None:
        """Send a frame on its way."""
        now = time.monotonic()
        if heartbeat:
            self._at(self._schedule.heartbeat_arrival(now), lambda: self._heartbeat_arrived(frame))
            return
        due = self._schedule.arrival(now, len(frame))
        self._in_flight.append((due, frame))
        self._at(due, self._arrived)

    def flush(self) -> None:
        """The link ends: deliver at once what is still in flight, in order."""
        while self._in_flight:
            self._deliver(self._in_flight.popleft()[1])
        self._closed = True

    def _at(self, due: float, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop when `due`."""

        def hand_over() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(callback)

        _TIMER.call_at(due - self._lead, hand_over)

    def _arrived(self) -> None:
        if not self._in_flight:
            return  # delivered by `flush`
        due, frame = self._in_flight.popleft()
        late = time.monotonic() > due
        self._lead = min(max(self._lead + (LEAD_STEP if late else -LEAD_STEP), 0.0), LEAD_MAX)
        self._deliver(frame)

    def _heartbeat_arrived(self, frame: bytes) -> None:
        if not self._closed:
            self._deliver(frame)
