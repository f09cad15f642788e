"""Is the peer there? Bookkeeping on a clock that the caller reads (seconds, monotonic)."""

from __future__ import annotations

import statistics
from collections import deque

from engine.protocol.messages import Ping, Pong

_SAMPLES = 9  # round trips that the median is taken over: one slow answer does not show


class Heartbeat:
    """A ping every `interval`; a peer that sent nothing at all for `silence` seconds is gone.

    Any bytes count as a sign of life, so a large frame that takes long to arrive does not look like silence.
    """

    def __init__(self, interval: float, silence: float, now: float) -> None:
        self.interval = interval
        self.silence = silence
        self._round_trips: deque[float] = deque(maxlen=_SAMPLES)
        self.peer_busy_ms = 0
        self.peer_queued = 0
        self._last_heard = now
        self._next_ping = now

    @property
    def rtt_ms(self) -> float | None:
        """Median of the last round trips; None before the first."""
        return statistics.median(self._round_trips) if self._round_trips else None

    def heard(self, now: float) -> None:
        """Bytes have arrived."""
        self._last_heard = now

    def ping(self, now: float) -> Ping | None:
        """The ping to send, if one is due."""
        if now < self._next_ping:
            return None
        self._next_ping = now + self.interval
        return Ping(round(now * 1e6))

    def pong(self, pong: Pong, now: float) -> None:
        """An answer to one of our pings."""
        self._round_trips.append(max(0.0, now * 1e3 - pong.sent_us / 1e3))
        self.peer_busy_ms = pong.busy_ms
        self.peer_queued = pong.queued

    def is_silent(self, now: float) -> bool:
        """True once the peer has been quiet for too long."""
        return now - self._last_heard >= self.silence

    def next_event(self) -> float:
        """When to look again: the next ping or the end of the peer's patience, whichever is first."""
        return min(self._next_ping, self._last_heard + self.silence)
