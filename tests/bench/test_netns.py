"""Network namespaces for a stage: a link that carries TCP, and nothing left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.bench.netns import NETEM, RELAY, _ip, _link, _namespace, delay_by, remove_leftovers
from engine.errors import SkippyError, UsageError
from engine.protocol.messages import LinkEmulation

ECHO = "import socket,sys; c=socket.create_server((sys.argv[1],9000)).accept()[0]; c.sendall(c.recv(9))"


def can_make_namespaces() -> bool:
    if sys.platform != "linux" or os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return False
    with contextlib.suppress(SkippyError), _namespace("test"):
        return True
    return False


needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason="needs root and network namespaces")


def namespaces() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").splitlines()}


def devices() -> str:
    return _ip("-o", "link")


@needs_namespaces
async def test_tcp_crosses_the_link_and_nothing_is_left() -> None:
    before = devices()
    way = delay_by()
    with _namespace("1") as name, _link(name, 1, LinkEmulation(rtt_ms=4), way) as inner:
        assert name in namespaces()
        server = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", name, sys.executable, "-c", ECHO, inner
        )
        reader, writer = await connected(inner)
        writer.write(b"nine char")
        assert await reader.readexactly(9) == b"nine char"
        writer.close()
        assert await server.wait() == 0
    assert name not in namespaces()
    assert devices() == before


async def connected(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Dial until the server listens."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, 9000)


@needs_namespaces
def test_what_a_killed_run_left_is_removed_and_nothing_else() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, foreign = f"skippy-{ended.pid}-0", f"another-{ended.pid}-0"
    _ip("netns", "add", left)
    _ip("netns", "add", foreign)
    try:
        with _namespace("mine") as mine:
            remove_leftovers()
            assert left not in namespaces()
            assert {foreign, mine} <= namespaces()
    finally:
        _ip("netns", "del", foreign)


@needs_namespaces
def test_the_way_of_delaying_is_found_out() -> None:
    assert delay_by() in (NETEM, RELAY)


def test_without_root_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="root"):
        delay_by()
