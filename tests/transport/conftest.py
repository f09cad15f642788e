"""Real servers and links on 127.0.0.1; everything is closed at the end of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engine.protocol.messages import Hello, Message, Welcome
from engine.transport import Link, Server, Timeouts, open_link, serve_links
from tests.protocol.samples import HELLO, WELCOME

PATIENT = Timeouts(connect=20, welcome=20, hello=20, heartbeat=0.05, silent=20, close=5)
"""For everything but tests of the limits themselves: a busy machine must not trip them."""


class Peer:
    """One end of a link together with what it received."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.closings: list[Link] = []

    def attach(self, link: Link) -> None:
        """Take over a link."""
        self.link = link
        link.on_message = self.received.put_nowait
        link.on_close = self.closings.append

    async def next(self) -> Message:
        """The next message."""
        return await asyncio.wait_for(self.received.get(), 20)

    async def closed(self) -> Link:
        """The link, once it has ended."""
        assert self.link is not None
        await asyncio.wait_for(self.link.closed.wait(), 20)
        return self.link


class Stage:
    """A server that welcomes everybody and keeps the links that came about."""

    def __init__(self) -> None:
        self.server: Server
        self.hellos: list[Hello] = []
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.welcome: Callable[[Hello], Welcome] = lambda hello: WELCOME

    async def on_hello(self, hello: Hello) -> Welcome:
        self.hellos.append(hello)
        return self.welcome(hello)

    def on_link(self, link: Link) -> None:
        peer = Peer()
        peer.attach(link)
        self.peers.put_nowait(peer)

    async def peer(self) -> Peer:
        """The stage's end of the next link."""
        return await asyncio.wait_for(self.peers.get(), 20)


class Network:
    """Starts servers and opens links for one test."""

    def __init__(self) -> None:
        self._open: list[Server | Link] = []

    async def serve(self, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Stage:
        """A stage that listens."""
        stage = Stage()
        options.setdefault("on_hello", stage.on_hello)
        options.setdefault("on_link", stage.on_link)
        options.setdefault("timeouts", PATIENT)
        stage.server = await serve_links(host, port, **options)
        self._open.append(stage.server)
        return stage

    async def open(self, stage: Stage, hello: Hello = HELLO, **options: Any) -> Peer:
        """The opener's end of a link to a stage."""
        peer = Peer()
        options.setdefault("timeouts", PATIENT)
        link = await open_link(stage.server.url, hello, on_message=peer.received.put_nowait, **options)
        peer.link = link
        link.on_close = peer.closings.append
        self._open.append(link)
        return peer

    async def pair(self, hello: Hello = HELLO, **options: Any) -> tuple[Peer, Peer]:
        """Both ends of a link: the opener's and the stage's."""
        stage = await self.serve()
        opener = await self.open(stage, hello, **options)
        return opener, await stage.peer()

    async def close(self) -> None:
        for item in reversed(self._open):
            await item.close()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    """See Network."""
    net = Network()
    yield net
    await net.close()


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Nothing that a peer does may end in an error of ours in the log."""
    yield  # type: ignore[misc]
    errors = [record for record in caplog.get_records("call") if record.levelname in ("ERROR", "CRITICAL")]
    assert not errors, [record.getMessage() for record in errors]
