"""Signs of life, on a clock that the test moves."""

from __future__ import annotations

from engine.protocol.heartbeat import Heartbeat
from engine.protocol.messages import Ping, Pong


def test_a_ping_is_due_at_once_and_then_once_per_interval() -> None:
    beat = Heartbeat(interval=0.5, silence=2.0, now=100.0)
    assert beat.ping(100.0) == Ping(100_000_000)
    assert beat.ping(100.4) is None
    assert beat.ping(100.5) == Ping(100_500_000)


def test_any_bytes_are_a_sign_of_life() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    assert not beat.is_silent(1.9)
    beat.heard(1.9)
    assert not beat.is_silent(3.8)
    assert beat.is_silent(3.9)


def test_the_next_event_is_the_ping_or_the_end_of_patience() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    beat.ping(0.0)
    assert beat.next_event() == 0.5
    beat.ping(1.8)
    assert beat.next_event() == 2.0
    beat.heard(1.0)
    assert beat.next_event() == 2.3


def test_the_round_trip_is_a_median() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    assert beat.rtt_ms is None
    for sent, took in enumerate([0.020, 0.500, 0.021, 0.019, 0.020]):
        beat.pong(Pong(sent * 1_000_000), sent + took)
    assert beat.rtt_ms is not None
    assert round(beat.rtt_ms, 6) == 20.0


def test_the_round_trip_follows_a_change() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    for took in [0.001] * 20 + [0.100] * 9:
        beat.pong(Pong(0), took)
    assert beat.rtt_ms == 100.0


def test_a_pong_tells_what_the_peer_is_doing() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    beat.pong(Pong(0, busy_ms=30_000, queued=3), 0.001)
    assert (beat.peer_busy_ms, beat.peer_queued) == (30_000, 3)


def test_a_pong_from_the_future_is_no_negative_round_trip() -> None:
    beat = Heartbeat(0.5, 2.0, now=0.0)
    beat.pong(Pong(9_000_000), 1.0)
    assert beat.rtt_ms == 0.0
