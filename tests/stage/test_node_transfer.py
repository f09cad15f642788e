"""A slice on its way to a node: whatever breaks, what is used is whole and what was announced."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.coordinator.nodes_link import NodeLink
from engine.coordinator.nodes_offer import offer
from engine.errors import LinkError, SkippyError
from engine.model.file import ModelFile
from engine.protocol.messages import Hello, Role
from engine.protocol.node_messages import Assigned, AssignProgress, SliceChunk, SliceWanted
from engine.transport.link import Link
from engine.transport.opener import open_link
from tests.faults.elsewhere import Proxy
from tests.stage.nodes import (
    TOKEN,
    Wanted,
    link_to,
    node_processes,
    waiting_node,
    working_for_us,
)

PIECE = 4096


def pieces_of(wanted: Wanted, start: int) -> bytes:
    """A slice from an offset on."""
    assert wanted.slice.pieces is not None
    return b"".join(bytes(piece) for piece in wanted.slice.pieces(start))


async def next_of(link: Link, kind: type[Any]) -> Any:
    """The next message of a kind."""
    async for message in link:
        if isinstance(message, kind):
            return message
    raise LinkError(link.reason)


async def raw_link(url: str) -> Link:
    return await open_link(url, Hello(role=Role.NODE, chain="tests"), token=TOKEN)


async def half_sent(url: str, wanted: Wanted) -> Link:
    """A transfer of which half has arrived."""
    link = await raw_link(url)
    link.post(wanted.question())
    assert (await next_of(link, SliceWanted)).offset == 0
    half = pieces_of(wanted, 0)[: wanted.slice.size // 2]
    for start in range(0, len(half), PIECE):
        link.post(SliceChunk(start, half[start : start + PIECE]))
        await next_of(link, AssignProgress)
    return link


@pytest.fixture(autouse=True)
def report_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in this process report every piece that arrives."""
    monkeypatch.setattr("engine.stage.node_session.REPORT_SECONDS", -1.0)


async def test_a_transfer_goes_on_after_the_link_broke(tiny: ModelFile, own_cache: Path) -> None:
    wanted = Wanted(tiny)
    async with waiting_node() as (_, url):
        link = await half_sent(url, wanted)
        link._socket.abort()
        async with working_for_us(url) as again:
            _, assigned = await again.assign(wanted.question(), wanted.slice, wanted.report)
        assert assigned.source == "received"
        assert 0 < again.bytes_sent <= wanted.slice.size - (wanted.slice.size // 2 // PIECE) * PIECE


async def test_a_transfer_goes_on_after_the_node_was_killed(tiny: ModelFile, tmp_path: Path) -> None:
    wanted = Wanted(tiny)
    async with node_processes(tmp_path, 1) as (node,):
        link = await raw_link(node.url)
        link.post(wanted.question())
        await next_of(link, SliceWanted)
        data = pieces_of(wanted, 0)
        link.post(SliceChunk(0, data[: 5 * PIECE]))
        link.post(SliceChunk(5 * PIECE, data[5 * PIECE :][:PIECE]))
        kept = tmp_path / "cache-0" / "skippy" / "slices" / tiny.fingerprint
        await until_kept(kept, 6 * PIECE)
        await node.end()
        await link.closed.wait()
        await node.start()
        async with working_for_us(node.url) as again:
            _, assigned = await again.assign(wanted.question(), wanted.slice, wanted.report)
        assert assigned.source == "received"
        assert again.bytes_sent == wanted.slice.size - 6 * PIECE


async def until_kept(folder: Path, size: int) -> None:
    """Wait until so much of a slice is on the disk of a node in another process."""
    import asyncio

    async with asyncio.timeout(20):
        while not any(part.stat().st_size >= size for part in folder.glob("*.part")):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def behind_a_proxy(url: str) -> Any:
    """A link to a node over a network that can fail."""
    target: Any = SimpleNamespace(port=int(url.rpartition(":")[2]))
    async with Proxy(target).listening() as proxy:
        link = link_to(proxy.url)
        await link.open()
        try:
            yield link, proxy
        finally:
            await link.close()


async def test_a_damaged_piece_is_noticed_and_sent_again(
    tiny: ModelFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.coordinator.nodes_link.MAX_CHUNK_BYTES", PIECE)
    wanted = Wanted(tiny)
    async with waiting_node() as (_, url), behind_a_proxy(url) as (link, proxy):

        def report(state: str, done: int, total: int) -> None:
            if state == "checking" and len(proxy.connections) == 1:
                proxy.connections[0].corrupt = 1  # the next thing that is sent is the slice

        _, assigned = await link.assign(wanted.question(), wanted.slice, report)
        assert assigned.source == "received"
        assert len(proxy.connections) > 1


async def test_another_slice_than_announced_is_refused_and_not_kept(tiny: ModelFile, own_cache: Path) -> None:
    wanted = Wanted(tiny)

    def wrong(start: int) -> Iterator[memoryview]:
        data = bytearray(pieces_of(wanted, 0))
        data[len(data) // 2] ^= 1
        yield memoryview(data)[start:]

    async with waiting_node() as (node, url), working_for_us(url) as link:
        with pytest.raises(SkippyError, match="the slice that came has the hash") as refusal:
            await link.assign(wanted.question(), replace(wanted.slice, pieces=wrong), wanted.report)
        assert refusal.value.code == "slice-hash"
        assert node.store.held() == ()
        assert not list(own_cache.rglob("*.part"))
        await link.open()  # the next engine has the right one
        _, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
        assert assigned.source == "received"


async def refused(link: NodeLink, wanted: Wanted) -> SkippyError:
    with pytest.raises(SkippyError) as refusal:
        await link.assign(wanted.question(), wanted.slice, wanted.report)
    assert refusal.value.code == "cache"
    return refusal.value


async def test_a_disk_without_room_is_known_before_anything_is_sent(
    tiny: ModelFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tiny)
    monkeypatch.setattr("engine.model.cache.free_bytes", lambda directory: 1 << 29)  # less than the reserve
    async with waiting_node() as (_, url), working_for_us(url) as link:
        assert "GB left" in (await refused(link, wanted)).message
        assert link.bytes_sent == 0


async def test_a_disk_that_fills_up_is_one_clear_line(
    tiny: ModelFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tiny)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with waiting_node() as (node, url), working_for_us(url) as link:
        with monkeypatch.context() as broken:
            broken.setattr("engine.model.cache.flush_to_disk", full)
            assert "the disk is full" in (await refused(link, wanted)).message
        assert node.store.held() == ()


async def test_two_nodes_with_one_cache_do_not_receive_the_same_slice_at_once(
    tiny: ModelFile, own_cache: Path
) -> None:
    wanted = Wanted(tiny)
    async with waiting_node() as (_, url), waiting_node() as (_, other), working_for_us(other) as second:
        first = await half_sent(url, wanted)
        with pytest.raises(SkippyError, match="another process of this machine receives layers-3-6"):
            await second.assign(wanted.question(), wanted.slice, wanted.report)
        rest = wanted.slice.size // 2
        first.post(SliceChunk(rest, pieces_of(wanted, rest)))
        assert isinstance(await next_of(first, Assigned), Assigned)
        await first.close()


async def test_slices_keep_within_their_bound_and_the_one_that_is_loaded_stays(
    tiny: ModelFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.model.pruning.GRACE_SECONDS", 0.0)
    caplog.set_level("INFO", "skippy.cache")
    first, second = Wanted(tiny, 3, 6), Wanted(tiny, 2, 4)
    room = max(first.slice.size, second.slice.size)  # for one of them
    async with waiting_node(slice_cache_gib=room / (1 << 30)) as (node, url):
        async with working_for_us(url) as link, waiting_node(slice_cache_gib=1e-9) as (_, other):
            await link.assign(first.question(), first.slice, first.report)
            async with working_for_us(other) as theirs:  # on the same machine, with the same cache
                await theirs.assign(second.question(), second.slice, second.report)
                assert {(held.first, held.end) for held in node.store.held()} == {(3, 6), (2, 4)}
        async with working_for_us(url) as link:
            await link.assign(second.question(), second.slice, second.report)
            assert [(held.first, held.end) for held in node.store.held()] == [(2, 4)]
    removed = [message for message in caplog.messages if message.startswith("removed ")]
    assert len(removed) == 1
    assert "layers-3-6" in removed[0]


async def test_slices_that_nobody_uses_make_room_on_a_full_disk(
    tiny: ModelFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.pruning.GRACE_SECONDS", 0.0)
    first, second = Wanted(tiny, 3, 6), Wanted(tiny, 2, 4)
    async with waiting_node() as (node, url), working_for_us(url) as link:
        await link.assign(first.question(), first.slice, first.report)
        full = (1 << 30) + second.slice.size - 1
        slice_file = next(own_cache.rglob("layers-3-6*.gguf"))

        def free(directory: Path) -> int:
            return full if slice_file.exists() else full + first.slice.size

        monkeypatch.setattr("engine.model.cache.free_bytes", free)
        monkeypatch.setattr("engine.model.pruning.free_bytes", free)
        await link.assign(second.question(), second.slice, second.report)
        assert [(held.first, held.end) for held in node.store.held()] == [(2, 4)]


def test_an_offer_tells_the_hash_of_what_the_slicer_would_write(tiny: ModelFile, own_cache: Path) -> None:
    from engine.model.cache import file_sha256
    from engine.model.slices import ensure_slice

    offered = offer(tiny, 2, 4)
    written = ensure_slice(tiny, 2, 4)
    assert offered.sha256 == file_sha256(written.path)
    assert offered.size == written.size
    data = written.path.read_bytes()
    assert offered.pieces is not None
    for start in (0, 7, 5000, offered.size - 1, offered.size):
        assert b"".join(bytes(piece) for piece in offered.pieces(start)) == data[start:]


def test_an_offer_is_hashed_once(tiny: ModelFile, own_cache: Path) -> None:
    hashed: list[int] = []
    first = offer(tiny, 2, 4, lambda done, total: hashed.append(done))
    assert hashed
    hashed.clear()
    assert offer(tiny, 2, 4, lambda done, total: hashed.append(done)).sha256 == first.sha256
    assert not hashed
