"""An established link: messages both ways, back-pressure, heartbeats, and an end that both sides hear of."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from engine.errors import LinkError, ProtocolError
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    ErrorMessage,
    Hello,
    Message,
    PrefillDone,
    Role,
    StageStatus,
    VerifyWindow,
    Welcome,
    WireType,
)
from engine.protocol.sessions import ReplyOrder
from engine.transport import Link
from engine.transport.link import INBOX_HIGH, POST_BOUND
from tests.protocol.samples import HELLO, INFO, prefill, reply, rows, same, window
from tests.transport.conftest import PATIENT, Network, Peer

CONFIGURE = ConfigureGeneration(1)


def post(peer: Peer, *messages: Message) -> None:
    assert peer.link is not None
    for message in messages:
        peer.link.post(message)


async def test_messages_pass_both_ways_in_order(network: Network) -> None:
    opener, stage = await network.pair(order=ReplyOrder())
    sent = [CONFIGURE, prefill(0, 20), window(0, 20), window(1, 21, 8)]
    post(opener, *sent)
    for message in sent:
        assert same(await stage.next(), message)
    answers = [PrefillDone(1, 20), reply(window(0, 20)), reply(window(1, 21, 8))]
    post(stage, *answers)
    for answer in answers:
        assert await opener.next() == answer


async def test_both_ends_know_what_was_said_in_the_handshake(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    assert stage.link is not None
    assert stage.link.hello == HELLO
    assert opener.link.welcome == stage.link.welcome == Welcome((INFO,))


async def test_a_link_can_be_read_with_async_for(network: Network) -> None:
    opener, stage = await network.pair()
    assert stage.link is not None
    stage.link.on_message = None
    post(opener, CONFIGURE, *[window(n, n) for n in range(100)])
    seen = []
    async for message in stage.link:
        seen.append(message)
        if len(seen) == 101:
            assert opener.link is not None
            await opener.link.close()
    assert [getattr(message, "window", None) for message in seen[1:]] == list(range(100))


async def test_messages_wait_until_somebody_takes_them(network: Network) -> None:
    opener, stage = await network.pair()
    assert stage.link is not None
    stage.link.on_message = None
    post(opener, CONFIGURE, *[window(n, n) for n in range(3 * INBOX_HIGH)])
    first = await anext(aiter(stage.link))
    assert first == CONFIGURE
    taken: asyncio.Queue[Message] = asyncio.Queue()
    stage.link.on_message = taken.put_nowait
    for n in range(3 * INBOX_HIGH):
        assert getattr(await asyncio.wait_for(taken.get(), 20), "window", None) == n


async def test_a_prefill_of_8_mib_passes(network: Network) -> None:
    info = replace(INFO, n_embd=4096, prefill_rows=512, context=4096)
    hello = replace(HELLO, n_embd=4096, prefill_rows=512, context=4096)
    stage_side = await network.serve()
    stage_side.welcome = lambda _: Welcome((info,))
    opener = await network.open(stage_side, hello)
    stage = await stage_side.peer()
    chunk = prefill(0, 512, activations=rows(512, n_embd=4096))
    post(opener, CONFIGURE, chunk)
    await stage.next()
    assert same(await stage.next(), chunk)


async def test_widened_activations_are_reported_once(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    opener, stage = await network.pair(replace(HELLO, wire=WireType.F16))
    huge = rows(1)
    huge[0, 0] = 103_772.0
    post(opener, CONFIGURE, *[window(n, n, activations=huge) for n in range(3)])
    await stage.next()
    for _ in range(3):
        assert (await stage.next()).activations.tobytes() == huge.tobytes()  # type: ignore[union-attr]
    assert opener.link is not None
    assert opener.link.widened_frames == 3
    assert sum("sent as f32" in record.getMessage() for record in caplog.records) == 1


# --- the end ------------------------------------------------------------------------------------------------


async def test_the_reason_of_a_close_reaches_the_other_side(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    await opener.link.close("the answer is complete")
    closed = await stage.closed()
    assert "the answer is complete" in closed.reason
    assert isinstance(closed.error, LinkError)
    assert opener.link.error is None
    assert opener.link.reason == "closed"
    assert stage.closings == [closed]
    assert opener.closings == [opener.link]


async def test_a_long_reason_is_cut_and_not_lost(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    await opener.link.close("日本語" * 100)
    assert "日本語日本語" in (await stage.closed()).reason


async def test_close_may_be_called_again_and_from_both_sides(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    assert stage.link is not None
    await asyncio.gather(opener.link.close(), opener.link.close(), stage.link.close())
    await opener.link.close()


async def test_on_close_runs_even_if_it_is_set_too_late(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    await opener.link.close()
    closed = await stage.closed()
    heard: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
    closed.on_close = heard.set_result
    assert await heard is closed


async def test_nothing_can_be_sent_on_a_closed_link(network: Network) -> None:
    opener, _ = await network.pair()
    assert opener.link is not None
    await opener.link.close()
    with pytest.raises(LinkError, match="is closed"):
        opener.link.post(CONFIGURE)
    with pytest.raises(LinkError, match="is closed"):
        await opener.link.send(CONFIGURE)


async def test_a_violation_ends_the_link_with_its_code_on_both_sides(network: Network) -> None:
    stage_side = await network.serve()
    opener = await network.open(stage_side)
    stage = await stage_side.peer()
    assert opener.link is not None
    bad = opener.link._connection.send(CONFIGURE)[:-1]  # the codec lets nothing bad out by itself
    opener.link._send_frame(bad)
    closed = await stage.closed()
    assert isinstance(closed.error, ProtocolError)
    assert closed.error.code == "json"
    error = await opener.next()
    assert isinstance(error, ErrorMessage)
    assert error.code == "json"
    assert "json" in (await opener.closed()).reason
    assert opener.link.peer_error == error
    assert stage_side.server.refused == 1
    await network.open(stage_side)  # the stage serves the next client
    await stage_side.peer()


async def test_an_error_in_a_callback_ends_the_link_and_names_itself(network: Network) -> None:
    opener, stage = await network.pair()
    assert stage.link is not None

    def refuse(message: Message) -> None:
        raise ProtocolError("position 7 is behind", code="position")

    stage.link.on_message = refuse
    post(opener, CONFIGURE)
    error = await opener.next()
    assert isinstance(error, ErrorMessage)
    assert (error.code, error.reason) == ("position", "position 7 is behind")
    assert "position 7 is behind" in (await opener.closed()).reason


async def test_what_is_posted_while_a_link_goes_down_is_refused_with_the_cause(network: Network) -> None:
    opener, _ = await network.pair()
    assert opener.link is not None
    opener.link.fail(ProtocolError("position 7 is behind", code="position"))
    assert not opener.link.closed.is_set()
    with pytest.raises(LinkError, match="is closed: position 7 is behind"):
        post(opener, CONFIGURE)


async def test_a_message_that_is_not_allowed_is_not_sent_and_the_link_lives(network: Network) -> None:
    opener, stage = await network.pair()
    with pytest.raises(ProtocolError):
        post(opener, window(0, 0))
    post(opener, CONFIGURE)
    assert await stage.next() == CONFIGURE


async def test_a_chunk_of_eight_mebibytes_is_no_message_too_large(network: Network) -> None:
    large = {"n_embd": 4096, "prefill_rows": 512, "context": 1024}
    stage_side = await network.serve()
    stage_side.welcome = lambda _: Welcome((replace(INFO, **large),))
    opener = await network.open(stage_side, replace(HELLO, **large))
    stage = await stage_side.peer()
    post(opener, CONFIGURE)
    chunk = prefill(0, 512, activations=rows(512, n_embd=4096))
    post(opener, chunk)
    assert await stage.next() == CONFIGURE
    assert same(await stage.next(), chunk)


# --- back-pressure ------------------------------------------------------------------------------------------


def large_hello() -> Hello:
    return replace(HELLO, n_embd=4096, prefill_rows=128, context=1 << 20)


async def large_pair(network: Network) -> tuple[Peer, Peer]:
    """A link for chunks of 2 MiB, whose stage does not read."""
    stage_side = await network.serve()
    stage_side.welcome = lambda _: Welcome((replace(INFO, n_embd=4096, prefill_rows=128, context=1 << 20),))
    opener = await network.open(stage_side, large_hello())
    stage = await stage_side.peer()
    assert stage.link is not None
    stage.link.pause()
    post(opener, CONFIGURE)
    return opener, stage


async def test_a_sender_waits_for_a_slow_peer_and_nothing_is_lost(network: Network) -> None:
    opener, stage = await large_pair(network)
    assert opener.link is not None
    assert stage.link is not None
    link = opener.link
    activations = rows(128, n_embd=4096)
    sent = 0
    most = 0

    async def produce() -> None:
        nonlocal sent, most
        for n in range(40):
            await link.send(prefill(n * 128, 128, activations=activations))
            sent += 1
            most = max(most, link._socket.buffered)

    producer = asyncio.create_task(produce())
    while link.is_writable:
        await asyncio.sleep(0)
    stuck_at = sent
    assert stuck_at < 40
    assert not producer.done()
    stage.link.resume()
    assert await stage.next() == CONFIGURE
    for n in range(40):
        assert (await stage.next()).start == n * 128  # type: ignore[union-attr]
    await producer
    assert most < 4 * 1024 * 1024  # one chunk more than the bound of the buffer


async def test_posting_to_a_peer_that_does_not_read_is_refused_in_the_end(network: Network) -> None:
    opener, stage = await large_pair(network)
    activations = rows(128, n_embd=4096)
    with pytest.raises(LinkError) as caught:
        post(opener, *[prefill(n * 128, 128, activations=activations) for n in range(100)])
    assert caught.value.code == "link-full"
    assert opener.link is not None
    assert opener.link._socket.buffered < 2 * POST_BOUND
    assert not opener.link.closed.is_set()
    assert stage.link is not None
    stage.link.resume()


async def test_a_waiting_sender_wakes_when_the_link_breaks(network: Network) -> None:
    opener, stage = await large_pair(network)
    assert opener.link is not None
    assert stage.link is not None
    link = opener.link
    activations = rows(128, n_embd=4096)

    async def produce() -> None:
        for n in range(1000):
            await link.send(prefill(n * 128, 128, activations=activations))

    producer = asyncio.create_task(produce())
    while link.is_writable:
        await asyncio.sleep(0)
    stage.link._socket.abort()
    with pytest.raises(LinkError, match="is closed"):
        await asyncio.wait_for(producer, 20)


async def test_a_reader_of_a_broken_link_is_done(network: Network) -> None:
    opener, stage = await network.pair()
    assert opener.link is not None
    assert stage.link is not None
    opener.link.on_message = None
    stage.link.post(StageStatus(1, "ready"))
    messages = aiter(opener.link)
    assert await anext(messages) == StageStatus(1, "ready")
    stage.link._socket.abort()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(messages), 20)
    assert "connection lost" in opener.link.reason


# --- heartbeats ---------------------------------------------------------------------------------------------


async def until_beat(link: Link) -> None:
    """Wait for the answer to a ping."""
    while link.rtt_ms is None:
        await asyncio.sleep(0.01)


async def test_heartbeats_measure_the_round_trip_at_both_ends(network: Network) -> None:
    opener, stage = await network.pair()
    for peer in (opener, stage):
        assert peer.link is not None
        await asyncio.wait_for(until_beat(peer.link), 20)
        assert peer.received.empty()  # heartbeats are the link's own business


async def test_a_busy_stage_says_so(network: Network) -> None:
    stage_side = await network.serve(busy=lambda: (30_000, 3))
    opener = await network.open(stage_side)
    assert opener.link is not None
    await asyncio.wait_for(until_beat(opener.link), 20)
    assert (opener.link.peer_busy_ms, opener.link.peer_queued) == (30_000, 3)


async def test_a_decode_longer_than_the_patience_for_silence_is_busy_and_not_dead(network: Network) -> None:
    began = 0.0

    def busy() -> tuple[int, int]:
        return (round((time.monotonic() - began) * 1000) if began else 0), 1

    stage_side = await network.serve(busy=busy)
    opener = await network.open(stage_side, timeouts=replace(PATIENT, silent=0.4))
    stage = await stage_side.peer()
    assert opener.link is not None
    opener.link.post(CONFIGURE)
    opener.link.post(window(0, 0))
    await stage.next()
    asked = await stage.next()
    assert isinstance(asked, VerifyWindow)
    began = time.monotonic()
    await asyncio.to_thread(time.sleep, 1.0)  # the decode, on a thread of its own
    post(stage, reply(asked))
    assert await opener.next() == reply(asked)
    assert opener.link.peer_busy_ms > 0
    assert not opener.link.closed.is_set()


async def test_a_silent_peer_is_declared_dead(network: Network) -> None:
    stage_side = await network.serve()
    opener = await network.open(stage_side, timeouts=replace(PATIENT, silent=0.3))
    stage = await stage_side.peer()
    assert stage.link is not None
    stage.link._heartbeat_timer.cancel()  # type: ignore[union-attr]
    stage.link.pause()  # as if its process were stopped: no pings, no pongs
    closed = await opener.closed()
    assert closed.error is not None
    assert closed.error.code == "silent"
    assert "silent for 0.3 s" in closed.reason


async def test_return_and_control_links_carry_their_messages(network: Network) -> None:
    stage_side = await network.serve()
    back = await network.open(stage_side, Hello(Role.RETURN, "c1"))
    last = await stage_side.peer()
    post(last, reply(window(3, 5)))
    assert await back.next() == reply(window(3, 5))
    control = await network.open(stage_side, Hello(Role.CONTROL, "c2"))
    asked = await stage_side.peer()
    post(control, StageStatus(-1, "?"))
    await asked.next()
    post(asked, StageStatus(1, "ready"))
    assert await control.next() == StageStatus(1, "ready")


async def test_another_thread_posts_between_the_loops_own_messages(network: Network) -> None:
    """What the socket does not take goes through the loop, and nothing overtakes what its thread sent."""
    opener, stage = await network.pair(order=ReplyOrder())
    assert opener.link is not None
    post(opener, CONFIGURE)
    assert await stage.next() == CONFIGURE
    assert stage.link is not None
    stage.link.pause()  # so that the socket fills up
    sent = [prefill(0, 32)] * 2400
    cancels = [CancelEpoch(1, epoch) for epoch in range(40)]

    def compute_thread(link: Link) -> None:
        for message in sent:
            link.post(message)

    thread = asyncio.create_task(asyncio.to_thread(compute_thread, opener.link))
    while not thread.done() or cancels:
        if cancels:
            post(opener, cancels.pop(0))
        await asyncio.sleep(0)
    await thread
    assert opener.link._socket.buffered > 0
    stage.link.resume()
    received = [await stage.next() for _ in range(2440)]
    assert [message.epoch for message in received if isinstance(message, CancelEpoch)] == list(range(40))
    chunks = [message for message in received if not isinstance(message, CancelEpoch)]
    assert len(chunks) == 2400
    assert all(same(chunk, sent[0]) for chunk in chunks)
