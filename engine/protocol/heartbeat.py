"""Is the peer there? Bookkeeping on a clock that the caller reads (seconds, monotonic)."""

from __future__ import annotations

from engine.protocol.messages import Ping, Pong

_SMOOTHING = 0.25  # weight of a new round trip in the average


class Heartbeat:
    """A ping every `interval`; a peer that sent nothing at all for `silence` seconds is gone.

    Any bytes count as a sign of life, so a large frame that takes long to arrive does not look like silence.
    """

    def __init__(self, interval: float, silence: float, now: float) -> None:
        self.interval = interval
        self.silence = silence
        self.rtt_ms: float | None = None
        self.peer_busy_ms = 0
        self.peer_queued = 0
        self._last_heard = now
        self._next_ping = now

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
        sample = max(0.0, now * 1e3 - pong.sent_us / 1e3)
        self.rtt_ms = sample if self.rtt_ms is None else self.rtt_ms + _SMOOTHING * (sample - self.rtt_ms)
        self.peer_busy_ms = pong.busy_ms
        self.peer_queued = pong.queued

    def is_silent(self, now: float) -> bool:
        """True once the peer has been quiet for too long."""
        return now - self._last_heard >= self.silence

    def next_event(self) -> float:
        """When to look again: the next ping or the end of the peer's patience, whichever is first."""
        return min(self._next_ping, self._last_heard + self.silence)
