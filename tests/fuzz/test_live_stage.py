"""A running stage is sent a thousand frames that are not right, each on a link of its own: all are refused
with a code, and the stage is as good as before."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ProtocolError
from engine.model.file import ModelFile
from engine.protocol.codec import encode
from engine.protocol.connection import Connection
from engine.protocol.messages import (
    ConfigureGeneration,
    Hello,
    Prefill,
    Role,
    StageStatus,
    Stop,
    VerifyWindow,
)
from engine.stage.service import LANE_QUEUE
from engine.transport import Link, open_link
from tests.faults.elsewhere import StageElsewhere, elsewhere
from tests.faults.harness import DEADLINE, disturbed, plan, remote_plan
from tests.faults.tiny_llama import LAYERS, WIDTH, write_tiny_llama
from tests.fuzz.mutations import spoil

FRAMES = 1000
WARM = 100  # of them before memory is measured
AT_ONCE = 8
GROWTH = 32 << 20  # bytes that the stage may have grown by: caches of Python, not frames


def lane_hello(path: Path) -> Hello:
    """Of a coordinator that computes the first half itself."""
    model = ModelFile.open(path)
    return Hello(
        role=Role.LANE,
        chain="fuzz",
        fingerprint=model.fingerprint,
        architecture=model.architecture,
        n_embd=WIDTH,
        n_layers=LAYERS,
        first_layer=3,
        window_rows=8,
        prefill_rows=32,
        context=512,
    )


def valid_frames() -> list[bytes]:
    """What a coordinator might send after it has configured session 1."""
    rows = np.ones((4, WIDTH), dtype=np.float32)
    return [
        encode(Prefill(1, 0, (5, 6, 7, 8), 9, activations=rows)),
        encode(VerifyWindow(1, 0, 0, 0, (5, 6, 7, 8), activations=rows)),
        encode(ConfigureGeneration(1)),
        encode(Stop(1)),
    ]


def refused_frames(hello: Hello, link: Link, count: int) -> list[bytes]:
    """Spoiled frames that the protocol forbids on this link, by the state machine's own word."""
    rng = random.Random(11)
    found: list[bytes] = []
    frames = valid_frames()
    while len(found) < count:
        frame = rng.randbytes(rng.randrange(200)) if rng.random() < 0.1 else rng.choice(frames)
        frame = spoil(frame or b"\0", rng)
        stage = Connection.acceptor()
        stage.receive(encode(hello))
        stage.accept(link.welcome)
        stage.receive(encode(ConfigureGeneration(1)))
        try:
            stage.receive(frame)
        except ProtocolError:
            found.append(frame)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


async def test_a_thousand_bad_frames_against_a_running_stage(model: Path) -> None:
    stage, hello = StageElsewhere(model, "3:6"), lane_hello(model)
    async with asyncio.timeout(DEADLINE), elsewhere(stage):
        first = await open_link(stage.url, hello)
        frames = refused_frames(hello, first, FRAMES)
        await first.close()
        codes: Counter[str] = Counter()

        async def attack(frames: Iterator[bytes]) -> None:
            for frame in frames:
                link = await open_link(stage.url, hello)
                link.post(ConfigureGeneration(1))
                link._send_frame(frame)
                await link.closed.wait()
                assert link.peer_error is not None, f"{frame!r} was not refused: {link.reason}"
                codes[link.peer_error.code] += 1

        await attack(iter(frames[:WARM]))
        before = memory(stage)
        rest = iter(frames[WARM:])
        await asyncio.gather(*(attack(rest) for _ in range(AT_ONCE)))
        assert sum(codes.values()) == FRAMES
        assert "internal" not in codes, codes
        assert len(codes) >= 5, codes
        status = await ask_status(stage)
        assert status.refused_frames == FRAMES
        assert status.sessions == 0
        assert memory(stage) - before < GROWTH
        async with disturbed(plan(model, ())) as whole, disturbed(remote_plan(model, stage.url)) as running:
            assert (await running.ask())["token_ids"] == (await whole.ask())["token_ids"]


async def test_a_flood_of_valid_frames_is_cut_off(model: Path) -> None:
    stage, hello = StageElsewhere(model, "3:6"), lane_hello(model)
    rows = np.ones((32, WIDTH), dtype=np.float32)
    async with asyncio.timeout(DEADLINE), elsewhere(stage):
        link = await open_link(stage.url, hello)
        link.post(ConfigureGeneration(1))
        frame = encode(Prefill(1, 0, tuple(range(3, 35)), 9, activations=rows))
        for _ in range(20 * LANE_QUEUE):
            link._send_frame(frame)
        await link.closed.wait()
        assert link.peer_error is not None
        assert link.peer_error.code == "flood"
        assert (await ask_status(stage)).state in ("ready", "busy")


def memory(stage: StageElsewhere) -> int:
    """Resident bytes of a stage."""
    assert stage.process is not None
    fields = Path(f"/proc/{stage.process.pid}/statm").read_text().split()
    return int(fields[1]) * 4096


async def ask_status(stage: StageElsewhere) -> StageStatus:
    link = await open_link(stage.url, Hello(role=Role.CONTROL, chain="status"))
    link.post(StageStatus(stage=0, state=""))
    async for message in link:
        if isinstance(message, StageStatus):
            await link.close()
            return message
    raise AssertionError(link.reason)
