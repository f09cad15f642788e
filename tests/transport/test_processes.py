"""A stage in a process of its own is killed, stopped and frozen for real."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from engine.errors import LinkError
from engine.protocol.messages import ConfigureGeneration, Message
from engine.transport import Link, open_link
from tests.protocol.samples import HELLO, same, window
from tests.protocol.samples import reply as reply_to


class StageProcess:
    """The process and an open link to it."""

    def __init__(self, process: Process, url: str, link: Link, received: asyncio.Queue[Message]) -> None:
        self.process, self.url, self.link, self.received = process, url, link, received

    async def ended(self) -> LinkError:
        """Why the link ended."""
        await asyncio.wait_for(self.link.closed.wait(), 20)
        assert isinstance(self.link.error, LinkError)
        return self.link.error


@pytest.fixture
async def stage() -> AsyncIterator[StageProcess]:
    """A stage that has answered a window, with the usual time limits."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.transport.stage_process", stdout=PIPE
    )
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    received: asyncio.Queue[Message] = asyncio.Queue()
    link = await open_link(url, HELLO, on_message=received.put_nowait)
    link.post(ConfigureGeneration(1))
    link.post(window(0, 0))
    assert same(await asyncio.wait_for(received.get(), 20), reply_to(window(0, 0)))
    yield StageProcess(process, url, link, received)
    if process.returncode is None:
        process.kill()
    await process.wait()
    await link.close()


async def test_a_killed_stage_is_noticed(stage: StageProcess) -> None:
    stage.process.kill()
    error = await stage.ended()
    assert stage.url.removeprefix("ws://") in str(error)
    await stage.process.wait()
    with pytest.raises(LinkError, match="nothing listens"):
        await open_link(stage.url, HELLO)


async def test_a_stopped_stage_is_noticed_by_its_silence(stage: StageProcess) -> None:
    stage.process.send_signal(signal.SIGSTOP)
    assert (await stage.ended()).code == "silent"
    stage.process.send_signal(signal.SIGCONT)
    link = await open_link(stage.url, HELLO)  # and it serves again once it goes on
    await link.close()


async def test_a_stage_that_is_asked_to_end_hangs_up(stage: StageProcess) -> None:
    stage.process.terminate()
    assert (await stage.ended()).code == "link"
