"""Emulated delay: the schedule to the microsecond without a clock, the rest over a real link."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.messages import ConfigureGeneration, LinkEmulation, Welcome
from engine.transport.emulation import DelayLine, PreciseTimer, Schedule
from tests.protocol.samples import HELLO, INFO, prefill, reply, window
from tests.transport.conftest import PATIENT, Network
from tests.transport.test_link import until_beat


def test_half_the_round_trip_each_way() -> None:
    schedule = Schedule(LinkEmulation(rtt_ms=20), "a")
    assert schedule.arrival(100.0, 2304) == pytest.approx(100.010)


def test_frames_overlap_in_flight() -> None:
    schedule = Schedule(LinkEmulation(rtt_ms=20), "a")
    assert [schedule.arrival(at, 10_000_000) for at in (1.0, 1.001, 1.002)] == pytest.approx(
        [1.010, 1.011, 1.012]
    )


def test_bandwidth_puts_frames_on_the_line_one_after_the_other() -> None:
    schedule = Schedule(LinkEmulation(rtt_ms=20, mbps=8), "a")  # a byte per microsecond
    assert schedule.arrival(1.0, 5_000) == pytest.approx(1.015)
    assert schedule.arrival(1.0, 5_000) == pytest.approx(1.020)
    assert schedule.backlog(1.0) == pytest.approx(10_000)
    assert schedule.seconds_until(1.0, 4_000) == pytest.approx(0.006)
    assert schedule.backlog(1.011) == 0
    assert schedule.arrival(2.0, 5_000) == pytest.approx(2.015)


def test_heartbeats_do_not_wait_for_the_line() -> None:
    schedule = Schedule(LinkEmulation(rtt_ms=20, mbps=0.001), "a")
    assert schedule.arrival(1.0, 100_000) > 800
    assert schedule.heartbeat_arrival(1.0) == pytest.approx(1.010)


@given(
    st.floats(0, 500),
    st.floats(0, 500),
    st.sampled_from([0.0, 1.0, 100.0]),
    st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 10**6)), max_size=50),
)
def test_order_is_kept_and_no_frame_arrives_before_it_was_sent(
    rtt: float, jitter: float, mbps: float, frames: list[tuple[float, int]]
) -> None:
    schedule = Schedule(LinkEmulation(rtt_ms=rtt, jitter_ms=jitter, mbps=mbps), "a")
    now, last = 5.0, 0.0
    for pause, size in frames:
        now += pause
        arrival = schedule.arrival(now, size)
        assert arrival >= last
        assert arrival >= now
        last = arrival


def arrivals(emulation: LinkEmulation, salt: str, n: int = 200) -> list[float]:
    schedule = Schedule(emulation, salt)
    return [schedule.arrival(float(at), 100) - at for at in range(n)]


def test_jitter_varies_around_the_delay_and_stays_within_its_bound() -> None:
    delays = arrivals(LinkEmulation(rtt_ms=20, jitter_ms=4), "a")
    assert min(delays) >= 0.008
    assert max(delays) <= 0.012
    assert max(delays) - min(delays) > 0.003
    assert sum(delays) / len(delays) == pytest.approx(0.010, abs=0.0005)


def test_links_and_directions_jitter_each_in_its_own_way_and_runs_repeat() -> None:
    emulation = LinkEmulation(rtt_ms=20, jitter_ms=4, seed=7)
    assert arrivals(emulation, "lane/1/out") == arrivals(emulation, "lane/1/out")
    assert arrivals(emulation, "lane/1/out") != arrivals(emulation, "lane/1/in")
    assert arrivals(emulation, "lane/1/out") != arrivals(emulation, "lane/2/out")
    assert arrivals(emulation, "lane/1/out") != arrivals(replace(emulation, seed=8), "lane/1/out")


async def test_the_timer_never_fires_early_and_serves_the_nearest_first() -> None:
    timer = PreciseTimer()
    loop = asyncio.get_running_loop()
    fired: list[tuple[int, float]] = []
    done = asyncio.Event()
    now = time.monotonic()
    due = [now + 0.03, now + 0.01, now + 0.02, now - 1.0]

    def fire(number: int) -> None:
        fired.append((number, time.monotonic()))
        if len(fired) == len(due):
            loop.call_soon_threadsafe(done.set)

    for number, when in enumerate(due):
        timer.call_at(when, lambda number=number: fire(number))  # type: ignore[misc]
    await asyncio.wait_for(done.wait(), 20)
    assert [number for number, _ in fired][1:] == [1, 2, 0]
    assert all(at >= due[number] for number, at in fired)


async def test_a_line_delivers_everything_in_order() -> None:
    received: list[bytes] = []
    done = asyncio.Event()

    def deliver(frame: bytes) -> None:
        received.append(frame)
        if len(received) == 200:
            done.set()

    line = DelayLine(LinkEmulation(rtt_ms=4, jitter_ms=4, mbps=1000), "a", deliver)
    sent = [bytes([n]) for n in range(200)]
    for frame in sent:
        line.push(frame, heartbeat=False)
        await asyncio.sleep(0)
    await asyncio.wait_for(done.wait(), 20)
    assert received == sent


async def test_a_line_that_ends_delivers_what_is_in_flight() -> None:
    received: list[bytes] = []
    line = DelayLine(LinkEmulation(rtt_ms=100_000), "a", received.append)
    line.push(b"first", heartbeat=False)
    line.push(b"beat", heartbeat=True)
    line.push(b"second", heartbeat=False)
    line.flush()
    assert received == [b"first", b"second"]


# --- over a link --------------------------------------------------------------------------------------------

SLOW = replace(HELLO, emulation=LinkEmulation(rtt_ms=30, jitter_ms=10, mbps=50))


async def test_messages_of_a_delayed_link_come_complete_and_in_order(network: Network) -> None:
    opener, stage = await network.pair(SLOW)
    assert opener.link is not None
    assert stage.link is not None
    asked = [window(n, n) for n in range(50)]
    for message in (ConfigureGeneration(1), *asked):
        opener.link.post(message)
    assert await stage.next() == ConfigureGeneration(1)
    for message in asked:
        received = await stage.next()
        assert received.window == message.window  # type: ignore[union-attr]
        stage.link.post(reply(message))
    for message in asked:
        assert await opener.next() == reply(message)


async def test_two_lanes_to_the_same_stage_do_not_jitter_in_step(network: Network) -> None:
    stage_side = await network.serve()
    lines = []
    for _ in range(2):
        opener = await network.open(stage_side, SLOW)
        assert opener.link is not None
        assert opener.link._outgoing is not None
        lines.append(opener.link._outgoing._schedule)
    later = time.monotonic() + 100
    streams = [[line.arrival(later + n, 1) for n in range(20)] for line in lines]
    assert streams[0] != streams[1]


async def test_the_measured_round_trip_includes_the_delay(network: Network) -> None:
    opener, _ = await network.pair(replace(HELLO, emulation=LinkEmulation(rtt_ms=30)))
    assert opener.link is not None
    await asyncio.wait_for(until_beat(opener.link), 20)
    assert opener.link.rtt_ms is not None
    assert opener.link.rtt_ms > 28  # a line may be early by what it has learnt to be late


async def test_a_delay_longer_than_the_patience_for_silence_kills_no_link(network: Network) -> None:
    opener, stage = await network.pair(
        replace(HELLO, emulation=LinkEmulation(rtt_ms=1200)), timeouts=replace(PATIENT, silent=0.5)
    )
    assert opener.link is not None
    opener.link.post(ConfigureGeneration(1))
    assert await stage.next() == ConfigureGeneration(1)
    await asyncio.wait_for(until_beat(opener.link), 20)
    assert not opener.link.closed.is_set()


async def test_the_last_words_of_a_delayed_link_are_not_lost(network: Network) -> None:
    opener, stage = await network.pair(replace(HELLO, emulation=LinkEmulation(rtt_ms=60_000)))
    assert opener.link is not None
    opener.link.post(ConfigureGeneration(1))
    await opener.link.close("enough")
    assert await stage.next() == ConfigureGeneration(1)
    assert "enough" in (await stage.closed()).reason


async def test_a_slow_line_makes_the_sender_wait(network: Network) -> None:
    hello = replace(HELLO, context=1 << 20, emulation=LinkEmulation(mbps=16))
    stage_side = await network.serve()
    stage_side.welcome = lambda _: Welcome((replace(INFO, context=1 << 20),))
    opener = await network.open(stage_side, hello)
    stage = await stage_side.peer()
    assert opener.link is not None
    await opener.link.send(ConfigureGeneration(1))
    waited = False
    for n in range(400):
        waited = waited or not opener.link.is_writable
        await opener.link.send(prefill(n * 32, 32))
    assert waited
    await stage.next()
    for n in range(400):
        assert (await stage.next()).start == n * 32  # type: ignore[union-attr]
