"""Who may come in, what happens to those who may not, and that none of them disturbs the next."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import HandshakeRefused, LinkError, StageLost, Unauthorized
from engine.protocol.codec import encode
from engine.protocol.limits import FIRST_FRAME_BYTES
from engine.protocol.messages import PROTOCOL_VERSION, Hello, Stop, Welcome
from engine.transport import open_link
from tests.protocol.samples import HELLO, window
from tests.transport.clients import BRISK, CONFIGURE, Raw, refusals, sealed, works
from tests.transport.conftest import PATIENT, Network

# --- tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "correct-horse-", "correct-horse-batteryy"])
async def test_a_wrong_token_is_refused_and_changes_nothing(
    network: Network, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    stage = await network.serve(token="correct-horse-battery")
    with pytest.raises(Unauthorized, match=str(stage.server.port)) as caught:
        await open_link(stage.server.url, HELLO, token=token, timeouts=PATIENT)
    assert ("asks for a token" if not token else "refused the token") in str(caught.value)
    assert "--token-file" in str(caught.value)
    assert stage.hellos == []
    assert stage.server.refused == 1
    await works(network, stage, token="correct-horse-battery")
    assert "correct-horse-battery" not in caplog.text


async def test_strangers_are_logged_once(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    stage = await network.serve(token="secret")
    for _ in range(5):
        with pytest.raises(Unauthorized):
            await open_link(stage.server.url, HELLO, token="guess", timeouts=PATIENT)
    assert stage.server.refused == 5
    assert sum("token" in record.getMessage() for record in caplog.records) == 1
    assert "guess" not in caplog.text


async def test_the_token_is_not_logged_even_when_everything_is(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stage = await network.serve(token="correct-horse-battery")
    await works(network, stage, token="correct-horse-battery")
    assert "horse" not in caplog.text


async def test_the_refusal_is_http_401(network: Network) -> None:
    stage = await network.serve(token="secret")
    raw = await Raw.connect(stage)
    head = await raw.upgrade("Authorization: Bearer guess")
    assert head.startswith(b"HTTP/1.1 401")
    assert b"WWW-Authenticate: Bearer" in head
    raw.close()
    for headers in (("Authorization: Bearer secret", "Authorization: Bearer x"), ("Authorization: secret",)):
        raw = await Raw.connect(stage)
        assert (await raw.upgrade(*headers)).startswith(b"HTTP/1.1 401")
        raw.close()


async def test_frames_sent_along_with_a_refused_upgrade_are_not_looked_at(network: Network) -> None:
    stage = await network.serve(token="secret")
    raw = await Raw.connect(stage)
    raw.frame(sealed(HELLO))
    early = raw.upgrade()
    raw.frame(sealed(HELLO))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await early  # the frame before the request makes it no HTTP at all
    raw = await Raw.connect(stage)
    request = asyncio.create_task(raw.upgrade())
    await asyncio.sleep(0)
    raw.frame(sealed(HELLO))
    assert b"401" in await request
    await raw.rest()
    assert stage.hellos == []
    await works(network, stage, token="secret")


async def test_web_pages_are_kept_out(network: Network) -> None:
    stage = await network.serve()
    raw = await Raw.connect(stage)
    assert (await raw.upgrade("Origin: http://evil.example")).startswith(b"HTTP/1.1 403")
    raw.close()
    await works(network, stage)


# --- the handshake ------------------------------------------------------------------------------------------


async def test_a_refusal_names_both_values_at_the_opener(network: Network) -> None:
    stage = await network.serve()
    with pytest.raises(HandshakeRefused, match=r"fingerprint differs: the coordinator has ff99, .* ab12"):
        await network.open(stage, replace(HELLO, fingerprint="ff99"))
    with pytest.raises(HandshakeRefused, match=r"window rows 64.*1 to 8"):
        await network.open(stage, replace(HELLO, window_rows=64))
    assert stage.peers.empty()
    await works(network, stage)
    await refusals(stage, 2)


async def test_what_the_stage_finds_reaches_the_opener(network: Network) -> None:
    def refuse(hello: Hello) -> Welcome:
        raise StageLost("stage 2 at b:1 is gone", hint="start it")

    stage = await network.serve()
    stage.welcome = refuse
    with pytest.raises(HandshakeRefused, match="stage 2 at b:1 is gone; start it") as caught:
        await network.open(stage)
    assert caught.value.code == "stage-lost"


async def test_another_version_is_told_so(network: Network) -> None:
    stage = await network.serve(timeouts=BRISK)
    raw = await Raw.connect(stage)
    await raw.upgrade()
    raw.frame(bytes([PROTOCOL_VERSION + 1]) + sealed(HELLO)[1:])
    answer = await raw.rest()
    assert f"protocol version {PROTOCOL_VERSION + 1}, this side {PROTOCOL_VERSION}".encode() in answer
    raw.close()
    await works(network, stage)


async def test_a_client_that_leaves_during_the_handshake_stops_it(network: Network) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(hello: Hello) -> Welcome:
        started.set()
        try:
            await asyncio.Future()
        finally:
            stopped.set()
        raise AssertionError

    stage = await network.serve(on_hello=slow)
    opening = asyncio.create_task(network.open(stage))
    await started.wait()
    opening.cancel()
    await asyncio.wait_for(stopped.wait(), 20)


async def test_an_opener_does_not_wait_for_ever(network: Network) -> None:
    async def never(hello: Hello) -> Welcome:
        await asyncio.Future()
        raise AssertionError

    stage = await network.serve(on_hello=never)
    with pytest.raises(LinkError, match=rf"127.0.0.1:{stage.server.port} did not answer within 0.1 s"):
        await network.open(stage, timeouts=replace(PATIENT, welcome=0.1))


# --- misuse: each time the next client is served ------------------------------------------------------------


NO_UPGRADE = {
    "blank line": b"\r\n\r\n",
    "plain get": b"GET / HTTP/1.1\r\n\r\n",
    "post": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    "old http": b"GET / HTTP/1.0\r\n\r\n",
    "endless path": b"GET /" + b"x" * 100_000,
    "endless headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "all bytes": bytes(range(256)) * 100,
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("data", NO_UPGRADE.values(), ids=NO_UPGRADE)
async def test_what_is_no_upgrade_is_dropped_quietly(
    network: Network, capfd: pytest.CaptureFixture[str], data: bytes
) -> None:
    stage = await network.serve(timeouts=replace(PATIENT, hello=0.5, close=0.2))
    raw = await Raw.connect(stage)
    raw.writer.write(data)
    await raw.rest()
    raw.close()
    assert "Traceback" not in "".join(capfd.readouterr())
    await works(network, stage)


BAD_FRAMES = {
    "no hello first": sealed(Stop(1)),
    "nonsense": b"nonsense",
    "empty": b"",
    "too large for a first frame": sealed(HELLO) + b" " * FIRST_FRAME_BYTES,
    "truncated": sealed(HELLO)[:-1],
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES)
async def test_a_bad_first_frame_is_refused(network: Network, frame: bytes) -> None:
    stage = await network.serve(timeouts=BRISK)
    raw = await Raw.connect(stage)
    await raw.upgrade()
    raw.frame(frame)
    assert await raw.rest()
    raw.close()
    assert stage.hellos == []
    await works(network, stage)


@pytest.mark.parametrize("opcode", [1, 3, 11])
async def test_frames_that_are_not_binary_are_refused(network: Network, opcode: int) -> None:
    stage = await network.serve(timeouts=BRISK)
    raw = await Raw.connect(stage)
    await raw.upgrade()
    raw.frame(b"{}", opcode=opcode)
    await raw.rest()
    raw.close()
    await works(network, stage)


async def test_fragments_are_put_together_but_not_without_end(network: Network) -> None:
    stage = await network.serve(timeouts=BRISK)
    raw = await Raw.connect(stage)
    await raw.upgrade()
    hello = sealed(HELLO)
    raw.frame(hello[:10], fin=False)
    raw.frame(hello[10:20], opcode=0, fin=False)
    raw.frame(hello[20:], opcode=0)
    await stage.peer()
    assert stage.hellos == [HELLO]
    raw.close()
    raw = await Raw.connect(stage)
    await raw.upgrade()
    raw.frame(b"", fin=False)
    for _ in range(2000):
        raw.frame(b"", opcode=0, fin=False)
    assert b"fragments" in await raw.rest()
    raw.close()


async def test_a_silent_client_cannot_hold_a_place(network: Network) -> None:
    stage = await network.serve(timeouts=replace(PATIENT, hello=0.1), max_links=2)
    silent = await Raw.connect(stage)
    half = await Raw.connect(stage)
    await half.upgrade()
    assert await silent.rest() == b""
    assert await half.rest() == b""
    await works(network, stage)


async def test_places_are_limited(network: Network) -> None:
    stage = await network.serve(max_links=2)
    first = await network.open(stage)
    await network.open(stage)
    with pytest.raises(LinkError, match="no free place"):
        await network.open(stage)
    assert first.link is not None
    await first.link.close()
    await (await stage.peer()).closed()
    await network.open(stage)


async def test_frames_out_of_order_are_refused(network: Network) -> None:
    stage = await network.serve()
    for frames in (
        [encode(window(0, 0))],
        [encode(CONFIGURE), encode(window(0, 9))],
        [encode(CONFIGURE), encode(window(3, 0)), encode(window(3, 1))],
        [encode(HELLO)],
    ):
        opener = await network.open(stage)
        served = await stage.peer()
        assert opener.link is not None
        for frame in frames:
            opener.link._send_frame(frame)
        assert served.link is not None
        closed = await served.closed()
        assert closed.error is not None
        await opener.closed()
    await works(network, stage)
    await refusals(stage, 4)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
async def test_a_frame_that_was_changed_on_the_way_is_refused(network: Network, place: float) -> None:
    stage = await network.serve()
    raw = await Raw.connect(stage)
    await raw.upgrade()
    frame = bytearray(sealed(HELLO))
    frame[int(place * len(frame))] ^= 1
    raw.frame(bytes(frame))
    assert b"damaged" in await raw.rest()
    raw.close()
    assert stage.hellos == []
    await works(network, stage)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=100), min_size=1, max_size=5), good=st.booleans())
def test_fuzzed_clients_leave_the_stage_in_working_order(
    frames: list[bytes], good: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async def attack() -> None:
        network = Network()
        stage = await network.serve(timeouts=replace(PATIENT, hello=0.05, close=0.2))
        raw = await Raw.connect(stage)
        await raw.upgrade()
        if good:
            raw.frame(sealed(HELLO))
        for frame in frames:
            raw.frame(frame)
        await asyncio.sleep(0)
        raw.close()
        await works(network, stage)
        await network.close()

    asyncio.run(attack())
    assert "Traceback" not in "".join(capfd.readouterr())
