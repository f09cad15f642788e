"""The way to llama.cpp's RPC server: a proxy that delays, and a library that must fit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.bench.rpc import delaying_proxy
from engine.cli.main import main
from engine.compute.rpc import check_library
from engine.errors import BackendError
from engine.protocol.messages import LinkEmulation


async def test_the_proxy_carries_bytes_both_ways_in_order() -> None:
    sent = bytes(range(256)) * 4096

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(sent)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with (
        server,
        delaying_proxy(server.sockets[0].getsockname()[1], LinkEmulation(rtt_ms=2, jitter_ms=2)) as port,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await reader.read(-1) == sent  # and the end comes through as well
        writer.close()


def test_a_file_that_is_no_backend_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    library = tmp_path / "libggml-rpc.so"
    with pytest.raises(BackendError, match="there is no"):
        check_library(str(library))
    library.write_bytes(b"no library")
    with pytest.raises(BackendError, match="cannot be loaded as a backend"):
        check_library(str(library))
    assert main(["bench", "--rpc-library", str(library)]) == 1
    assert "docs/performance.md" in capfd.readouterr().err
