"""Stages started by hand, as on another machine, and a network between them and the engine that can fail."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.faults.harness import DEADLINE

COMMAND = (sys.executable, "-m", "engine.cli.main", "stage")


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StageElsewhere:
    """`skippy-engine stage`, on a port of its own that it keeps when it is started again."""

    def __init__(
        self, model: Path, layers: str, options: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = ""
        self._arguments = ["--model", str(model), "--layers", layers, "--listen", f"127.0.0.1:{self.port}"]
        self._arguments += ["--threads", "1", "--ctx", "2048", *options]
        self._env = {**os.environ, **(env or {})}
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, or start it again; returns when it listens."""
        await self.end()
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND, *self._arguments, stdout=asyncio.subprocess.PIPE, env=self._env
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(DEADLINE):
            line = (await self.process.stdout.readline()).decode()
        assert line.startswith("ready "), line
        self.url = line.split()[1]

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def end(self) -> None:
        """End it by force."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await self.process.wait()
            self.process = None


@asynccontextmanager
async def elsewhere(*stages: StageElsewhere) -> AsyncIterator[None]:
    """The stages run inside this context."""
    try:
        await asyncio.gather(*(stage.start() for stage in stages))
        yield
    finally:
        await asyncio.gather(*(stage.end() for stage in stages))


class Connection:
    """One connection through a proxy, and what is done to its bytes."""

    def __init__(self, proxy: Proxy, downward: asyncio.StreamWriter, upward: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self._writers = (downward, upward)
        self.corrupt = 0  # so many of the next pieces from the opener get a flipped bit
        self.open_way = asyncio.Event()  # while it is not set, bytes go nowhere and nobody is told
        self.open_way.set()

    @property
    def is_open(self) -> bool:
        return not self._writers[0].is_closing()

    def cut(self) -> None:
        """Both ends see the connection break."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """A cable is pulled: nothing comes through, and the connection does not break."""
        self.open_way.clear()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opener: bool) -> None:
        """Carry bytes one way."""
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self.open_way.wait()
                if self.proxy.delay:
                    await asyncio.sleep(self.proxy.delay)
                if opener and self.corrupt and len(data) > 64:
                    self.corrupt -= 1
                    changed = bytearray(data)
                    changed[len(data) // 2] ^= 0x10
                    data = bytes(changed)
                writer.write(data)
                await writer.drain()
        self.cut()


class Proxy:
    """A TCP proxy in front of one stage. Its connections are numbered from 0 in the order of their coming."""

    def __init__(self, target: StageElsewhere) -> None:
        self.target = target
        self.connections: list[Connection] = []
        self.refused: set[int] = set()  # numbers of connections that are broken as soon as they are made
        self.delay = 0.0  # seconds for each piece of data, one after the other
        self.down = False  # refuses everybody
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Break every connection."""
        for connection in self.connections:
            connection.cut()

    def freeze(self) -> None:
        """Freeze every connection, and let no other in."""
        self.down = True
        for connection in self.connections:
            connection.freeze()

    def thaw(self) -> None:
        """What is frozen goes on, and others may come."""
        self.down = False
        for connection in self.connections:
            connection.open_way.set()

    def forget_closed(self) -> None:
        """Keep only the connections that are open."""
        self.connections = [connection for connection in self.connections if connection.is_open]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Proxy]:
        """It listens inside this context."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        try:
            yield self
        finally:
            self._server.close()
            self.thaw()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.down:
                raise ConnectionRefusedError
            there = await asyncio.open_connection("127.0.0.1", self.target.port)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(self, writer, there[1])
        number = len(self.connections)
        self.connections.append(connection)
        if number in self.refused:
            connection.cut()
            return
        loop = asyncio.get_running_loop()
        for task in (
            loop.create_task(connection.pump(reader, there[1], True)),
            loop.create_task(connection.pump(there[0], writer, False)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
