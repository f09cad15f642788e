"""Nodes for tests, in this process and in processes of their own, and what a coordinator does with them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.config.nodes import NodeSettings
from engine.coordinator.nodes_link import NodeLink
from engine.coordinator.nodes_offer import OfferedSlice, offer
from engine.model.file import ModelFile
from engine.protocol.node_messages import Assign
from engine.stage.node import Node
from engine.stage.node_options import NodeOptions

TOKEN = "a-token-of-these-tests"
DEADLINE = 60.0
COMMAND = (sys.executable, "-m", "engine.cli.main", "stage")


@asynccontextmanager
async def waiting_node(**options: object) -> AsyncIterator[tuple[Node, str]]:
    """A node in this process, and its URL."""
    values = {"token": TOKEN, "accept_slices": True, "threads": 1, **options}
    node = Node(NodeOptions(**values))  # type: ignore[arg-type]
    url = await node.listen()
    try:
        yield node, url
    finally:
        async with asyncio.timeout(DEADLINE):
            await node.close()


class NodeProcess:
    """`skippy-engine stage` without layers, with a cache of its own."""

    def __init__(self, cache: Path, token_file: Path, options: Sequence[str] = (), port: int = 0) -> None:
        self.url = ""
        self._port = port
        self._arguments = ["--token-file", str(token_file), "--threads", "1", *options]
        self._env = {**os.environ, "XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(cache / "state")}
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, or start it again at the same place."""
        await self.end()
        listen = ["--listen", f"127.0.0.1:{self._port}"]
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND, *self._arguments, *listen, stdout=asyncio.subprocess.PIPE, env=self._env
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE):
            line = (await self.process.stdout.readline()).decode()
        word, self.url, state = line.split()
        assert (word, state) == ("ready", "idle"), line
        self._port = int(self.url.rpartition(":")[2])

    async def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
            async with asyncio.timeout(DEADLINE):
                await self.process.wait()
            self.process = None


@asynccontextmanager
async def node_processes(
    folder: Path, count: int, options: Sequence[str] = ()
) -> AsyncIterator[list[NodeProcess]]:
    """Nodes that run inside this context."""
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    nodes = [NodeProcess(folder / f"cache-{number}", token_file, options) for number in range(count)]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        await asyncio.gather(*(node.end(signal.SIGTERM) for node in nodes))


def link_to(url: str, name: str = "second", token: str = TOKEN) -> NodeLink:
    return NodeLink(NodeSettings(name=name, url=url, token=token))


@asynccontextmanager
async def working_for_us(url: str) -> AsyncIterator[NodeLink]:
    """An open link to a node."""
    link = link_to(url)
    await link.open()
    try:
        yield link
    finally:
        await link.close()


@dataclass
class Wanted:
    """Layers of a model that a node is to serve, and what it reports meanwhile."""

    model: ModelFile
    first: int = 3
    end: int = 6
    reports: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def slice(self) -> OfferedSlice:
        return offer(self.model, self.first, self.end)

    def question(self, **changes: object) -> Assign:
        offered = self.slice
        values = {
            "fingerprint": self.model.fingerprint,
            "model_name": self.model.name,
            "first": self.first,
            "end": self.end,
            "sha256": offered.sha256,
            "size": offered.size,
            "offered": True,
            "stage_index": 1,
            "context": 256,
            **changes,
        }
        return Assign(**values)  # type: ignore[arg-type]

    def report(self, state: str, done: int, total: int) -> None:
        self.reports.append((state, done, total))

    @property
    def states(self) -> list[str]:
        """What was reported, each state once."""
        return list(dict.fromkeys(state for state, _, _ in self.reports))
