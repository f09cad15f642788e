"""llama.cpp's RPC split as an arm: a server process for the last layers, behind the delay of the other arms.

`python -m engine.bench.rpc LIBRARY THREADS` is that server; it says its port and ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from engine.bench.threads import on_thread
from engine.compute.rpc import check_library, remote_device, serve
from engine.compute.whole_loop import PlainLoop
from engine.errors import SkippyError
from engine.model.file import ModelFile
from engine.protocol.messages import LinkEmulation
from engine.stage.process import end_with_parent
from engine.transport.emulation import DelayLine

_CHUNK = 1 << 18
_HOST = "127.0.0.1"


@asynccontextmanager
async def rpc_loop(
    library: str, model: ModelFile, split: int, *, threads: int, context: int, emulation: LinkEmulation
) -> AsyncIterator[PlainLoop]:
    """llama.cpp's plain loop with the layers from `split` on, and the head, in another process.

    Raises BackendError if the library does not fit.
    """
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(_server(library, threads))
        port = await stack.enter_async_context(delaying_proxy(port, emulation))

        def load() -> PlainLoop:
            device = remote_device(library, f"{_HOST}:{port}")
            layers = model.n_layers + model.n_nextn - split + 1  # llama.cpp counts the head as one
            loop = PlainLoop(
                model.path, context=context, threads=threads, gpu_layers=layers, devices=(device,)
            )
            stack.callback(loop.close)  # here, for the case that nobody waits for it any more
            return loop

        yield await on_thread(load)


@asynccontextmanager
async def delaying_proxy(port: int, emulation: LinkEmulation) -> AsyncIterator[int]:
    """A port that leads to another one of this machine, each direction delayed as an emulated link's is."""
    connections: set[asyncio.Task[None]] = set()

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, emulation: LinkEmulation
    ) -> None:
        line = DelayLine(emulation, "rpc", partial(_write, writer))
        while data := await reader.read(_CHUNK):
            line.push(data, heartbeat=False)
        line.flush()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        onward_reader, onward = await asyncio.open_connection(_HOST, port)
        for side in (writer, onward):
            side.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(carry(reader, onward, emulation), carry(onward_reader, writer, emulation))
        connections.discard(task)

    server = await asyncio.start_server(connected, _HOST, 0, limit=_CHUNK)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


@asynccontextmanager
async def _server(library: str, threads: int) -> AsyncIterator[int]:
    """The server in a process of its own; gives its port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "engine.bench.rpc", library, str(threads)), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).strip()
        if not line.isdigit():
            raise SkippyError("llama.cpp's RPC server did not start", hint="its reason stands above")
        await _listening(int(line))
        yield int(line)
    finally:
        process.stdin.close()
        await process.wait()


async def _listening(port: int) -> None:
    """Wait until somebody listens."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection(_HOST, port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def main(library: str, threads: str) -> None:
    end_with_parent()
    check_library(library)
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    os.write(1, b"%d\n" % port)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # llama.cpp prints about its clients
    serve(library, f"{_HOST}:{port}", int(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
