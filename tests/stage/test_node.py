"""A machine that waits for layers: where it finds them, whom it works for, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from engine.coordinator.chain import probe
from engine.coordinator.nodes_offer import OfferedSlice
from engine.errors import Busy, HandshakeRefused, SkippyError, Unauthorized
from engine.model.file import ModelFile
from engine.model.packages.write import write_package
from engine.planning.synthetic import measuring_header
from engine.protocol.messages import Hop, LinkEmulation
from engine.stage import node as node_module
from engine.stage.node_options import NodeOptions
from engine.timeouts import TIMEOUTS
from engine.transport.probing import probe_distance
from tests.stage.nodes import TOKEN, Wanted, link_to, waiting_node, working_for_us

pytestmark = pytest.mark.usefixtures("own_cache")


async def until_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of ours to wait for."""
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.02)


async def test_it_says_what_it_is_and_has(tiny: ModelFile, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "deep"
    folder.mkdir(parents=True)
    shutil.copy(tiny.path, folder)
    (folder / "other.gguf").write_bytes(b"no model")
    async with waiting_node(folders=(str(tmp_path / "models"),)) as (_, url), working_for_us(url) as link:
        info = await link.describe()
    assert info.models == (tiny.fingerprint,)
    assert info.slices == ()
    assert info.cores >= 1
    assert min(info.free_memory, info.free_disk) > 1 << 20
    assert info.accepts_slices


async def test_it_is_sent_a_slice_once_and_serves_it_again_and_again(tiny: ModelFile) -> None:
    wanted = Wanted(tiny)
    async with waiting_node() as (node, url):
        async with working_for_us(url) as link:
            hop, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
            assert (assigned.source, link.bytes_sent) == ("received", wanted.slice.size)
            assert wanted.states == ["checking", "receiving", "loading"]
            info = await probe(hop)
            assert (info.first_layer, info.end_layer, info.context) == (3, 6, 256)
            assert info.fingerprint == tiny.fingerprint
        async with working_for_us(url) as link:  # the next engine finds it at work
            again, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
            assert (assigned.source, link.bytes_sent) == ("running", 0)
            assert again == hop
            await node.drop_assignment()
            _, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
            assert (assigned.source, link.bytes_sent) == ("cache", 0)
            (held,) = (await link.describe()).slices
            assert (held.first, held.end, held.sha256) == (3, 6, wanted.slice.sha256)


async def test_it_cuts_the_slice_from_a_copy_of_its_own(tiny: ModelFile) -> None:
    wanted = Wanted(tiny)
    async with waiting_node(files=(str(tiny.path),)) as (_, url), working_for_us(url) as link:
        question = wanted.question(offered=False)
        hop, assigned = await link.assign(question, wanted.slice, wanted.report)
        assert (assigned.source, link.bytes_sent) == ("model", 0)
        assert (await probe(hop)).first_layer == 3


async def test_it_uses_the_slice_of_a_package(tiny: ModelFile, tmp_path: Path) -> None:
    wanted = Wanted(tiny)
    write_package(tiny, (3,), tmp_path / "packages" / "tiny")
    async with waiting_node(folders=(str(tmp_path / "packages"),)) as (_, url), working_for_us(url) as link:
        hop, assigned = await link.assign(wanted.question(offered=False), wanted.slice, wanted.report)
        assert (assigned.source, link.bytes_sent) == ("model", 0)
        assert (await probe(hop)).first_layer == 3


async def test_other_weights_under_the_same_header_are_not_used(tiny: ModelFile, tmp_path: Path) -> None:
    data = bytearray(tiny.path.read_bytes())
    tensor = tiny.tensors["blk.4.ffn_down.weight"]
    data[tensor.offset] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(data)
    assert ModelFile.open(other).fingerprint == tiny.fingerprint
    wanted = Wanted(tiny)
    async with waiting_node(files=(str(other),)) as (_, url), working_for_us(url) as link:
        with pytest.raises(SkippyError, match="no copy of layers 3:6 of tiny-llama"):
            await link.assign(wanted.question(offered=False), wanted.slice, wanted.report)
        _, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
        assert assigned.source == "received"


@pytest.mark.parametrize(
    ("accepts", "offered", "hint"),
    [(False, True, "--accept-slices"), (True, False, "allow the transfer in front")],
)
async def test_both_sides_must_allow_a_transfer(
    tiny: ModelFile, accepts: bool, offered: bool, hint: str
) -> None:
    wanted = Wanted(tiny)
    async with waiting_node(accept_slices=accepts) as (_, url), working_for_us(url) as link:
        with pytest.raises(SkippyError, match=hint) as refusal:
            await link.assign(wanted.question(offered=offered), wanted.slice, wanted.report)
        assert refusal.value.code == "no-slice"
        assert link.bytes_sent == 0
        assert (await link.describe()).slices == ()  # it goes on answering


async def test_a_second_engine_is_told_that_the_node_is_busy(
    tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.coordinator.nodes_link.TIMEOUTS", replace(TIMEOUTS, node_busy=0.1))
    async with waiting_node() as (_, url), working_for_us(url):
        with pytest.raises(Busy, match="this node works for another engine, at "):
            await link_to(url).open()


async def test_it_works_for_the_next_engine_as_soon_as_the_last_one_is_gone() -> None:
    async with waiting_node() as (_, url):
        first = link_to(url)
        await first.open()
        leaving = asyncio.get_running_loop().call_later(0.2, lambda: asyncio.ensure_future(first.close()))
        async with working_for_us(url) as second:
            assert (await second.describe()).cores >= 1
        assert leaving.cancelled() is False


async def test_layers_that_nobody_wants_any_more_are_given_up(
    tiny: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "TIMEOUTS", replace(TIMEOUTS, node_keep=0.05))
    wanted = Wanted(tiny)
    async with waiting_node() as (node, url):
        async with working_for_us(url) as link:
            _, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
            assert node.assignment is not None
        await until_gone(assigned.pid)
        assert node.assignment is None


async def test_a_stage_that_hangs_is_replaced_when_asked(tiny: ModelFile) -> None:
    wanted = Wanted(tiny)
    async with waiting_node() as (_, url), working_for_us(url) as link:
        _, first = await link.assign(wanted.question(), wanted.slice, wanted.report)
        os.kill(first.pid, signal.SIGSTOP)
        hop, again = await link.assign(wanted.question(), wanted.slice, wanted.report)
        assert again.source == "cache"
        assert again.pid != first.pid
        assert (await probe(hop)).first_layer == 3


async def test_other_layers_take_the_place_of_the_first(tiny: ModelFile) -> None:
    async with waiting_node() as (_, url), working_for_us(url) as link:
        first, second = Wanted(tiny, 3, 6), Wanted(tiny, 2, 4)
        _, assigned = await link.assign(first.question(), first.slice, first.report)
        hop, _ = await link.assign(second.question(), second.slice, second.report)
        await until_gone(assigned.pid)
        assert (await probe(hop)).end_layer == 4


async def test_a_slice_that_cannot_be_loaded_does_not_take_the_node_down(tiny: ModelFile) -> None:
    junk = b"GGUF" + bytes(1000)
    sha256 = hashlib.sha256(junk).hexdigest()
    offered = OfferedSlice(3, 6, sha256, len(junk), lambda start: iter([memoryview(junk)[start:]]))
    wanted = Wanted(tiny)
    async with waiting_node() as (_, url), working_for_us(url) as link:
        with pytest.raises(SkippyError) as refusal:
            await link.assign(wanted.question(sha256=sha256, size=len(junk)), offered, wanted.report)
        assert refusal.value.code == "model-file"
        _, assigned = await link.assign(wanted.question(), wanted.slice, wanted.report)
        assert assigned.source == "received"


async def test_it_times_a_model_by_its_header(tiny: ModelFile) -> None:
    async with waiting_node() as (_, url), working_for_us(url) as link:
        with pytest.raises(SkippyError) as refusal:
            await link.measure(b"no header", 1)
        assert refusal.value.code == "model-file"
        costs, threads = await link.measure(measuring_header(tiny), 64)
    assert threads == 1  # more than its owner allows are not used
    assert costs.fingerprint == tiny.fingerprint
    assert min(costs.layer_us) > 0


async def test_the_way_between_two_nodes_is_measured_as_it_is_emulated() -> None:
    async with waiting_node() as (_, url), waiting_node() as (_, other), working_for_us(url) as link:
        near = await link.probe(link_to(other, "third").settings, LinkEmulation())
        far = await link.probe(link_to(other, "third").settings, LinkEmulation(rtt_ms=40, mbps=50))
    assert near.rtt_ms < far.rtt_ms
    assert far.rtt_ms >= 40
    assert near.mbps > far.mbps
    assert 25 < far.mbps < 75


async def test_a_way_that_does_not_exist_is_named() -> None:
    async with waiting_node() as (_, url), working_for_us(url) as link:
        with pytest.raises(SkippyError, match="second: nothing listens at "):
            await link.probe(link_to("ws://127.0.0.1:1", "third").settings, LinkEmulation())
        with pytest.raises(Unauthorized):
            await probe_distance(url, "another", emulation=LinkEmulation())


async def test_strangers_and_lanes_are_turned_away() -> None:
    async with waiting_node() as (_, url):
        with pytest.raises(Unauthorized, match="refused the token"):
            await link_to(url, token="another").open()
        with pytest.raises(HandshakeRefused, match="name it with --node"):
            await probe(Hop(url, TOKEN))


def test_its_owner_says_how_many_threads_at_most() -> None:
    assert NodeOptions(threads=4).threads_for(0) == 4
    assert NodeOptions(threads=4).threads_for(2) == 2
    assert NodeOptions(threads=4).threads_for(9) == 4
