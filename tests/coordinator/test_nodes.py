"""One front, machines that wait for layers: the model's own answer, and no byte sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.config.nodes import NodeSettings
from engine.config.plan import RunPlan
from engine.coordinator.nodes import LEFT_OUT
from engine.errors import ConfigError, SkippyError, UsageError
from engine.events import NodeState, Notice
from tests.faults.harness import DEADLINE, Disturbed, disturbed, in_decode, plan
from tests.faults.tiny_llama import write_tiny_llama
from tests.stage.nodes import TOKEN, NodeProcess, node_processes

SPLIT = (1, 3, 5)
NAMES = ("second", "third", "fourth")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[NodeProcess]]:
    """Three machines that wait, each with a cache of its own."""
    async with node_processes(tmp_path_factory.mktemp("nodes"), 3) as running:
        yield running


def plan_over(model: Path, nodes: list[NodeProcess], split: tuple[int, ...] = SPLIT) -> RunPlan:
    settings = tuple(NodeSettings(name, node.url, TOKEN) for name, node in zip(NAMES, nodes, strict=False))
    return replace(plan(model, split, use_nodes=True), nodes=settings)


def last_states(running: Disturbed) -> dict[str, NodeState]:
    """The last thing that was told of each node."""
    return {event.name: event for event in running.of_kind(NodeState)}


async def whole_answer(model: Path) -> list[int]:
    async with disturbed(plan(model, ())) as whole:
        return (await whole.ask())["token_ids"]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_three_machines_answer_like_one_and_get_their_slices_once(
    model: Path, nodes: list[NodeProcess]
) -> None:
    expected = await whole_answer(model)
    async with disturbed(plan_over(model, nodes)) as running:
        result = await running.ask()
        assert result["token_ids"] == expected
        assert [stage["layers"] for stage in result["stages"]] == [[0, 1], [1, 3], [3, 5], [5, 6]]
        for state in last_states(running).values():
            assert (state.state, state.detail) == ("ready", "received")
            assert state.bytes_sent == state.total  # its slice, once
    for node in nodes:  # a machine is switched off and on
        await node.start()
    async with disturbed(plan_over(model, nodes)) as running:
        assert (await running.ask())["token_ids"] == expected
        for state in last_states(running).values():
            assert (state.state, state.detail, state.bytes_sent) == ("ready", "cache", 0)


async def test_a_node_that_cannot_be_reached_is_left_out_with_a_warning(
    model: Path, nodes: list[NodeProcess]
) -> None:
    reached = plan_over(model, nodes, split=(2, 4))
    gone = NodeSettings("gone", "ws://127.0.0.1:1", TOKEN)
    async with disturbed(replace(reached, nodes=(gone, *reached.nodes[:2]))) as running:
        assert (await running.ask())["token_ids"] == await whole_answer(model)
        (warning,) = [notice for notice in running.of_kind(Notice) if notice.code == LEFT_OUT]
        assert warning.message.startswith("gone is left out: nothing listens at ")
        assert last_states(running)["gone"].state == "left-out"


async def test_too_few_nodes_are_an_error_that_says_so(model: Path, nodes: list[NodeProcess]) -> None:
    running = Disturbed(plan_over(model, nodes[:1]))
    try:
        with pytest.raises(UsageError, match="3 cuts need 3 nodes besides this machine, and 1 can be used"):
            await running.engine.start()
    finally:
        await running.engine.close()


async def test_no_nodes_at_all_are_an_error_too(model: Path) -> None:
    running = Disturbed(plan_over(model, []))
    with pytest.raises(ConfigError, match="there are no nodes to use"):
        await running.engine.start()
    await running.engine.close()


async def test_a_node_that_dies_in_the_middle_of_an_answer_is_waited_for(
    model: Path, nodes: list[NodeProcess]
) -> None:
    expected = await whole_answer(model)
    async with disturbed(plan_over(model, nodes)) as running:
        restarted: list[asyncio.Task[None]] = []

        def die() -> None:
            assert nodes[1].process is not None
            nodes[1].process.kill()
            restarted.append(asyncio.create_task(nodes[1].start()))

        running.trap(in_decode, die)
        result = await running.ask()
        await restarted[0]
        assert result["token_ids"] == expected
        assert last_states(running)["third"].detail in ("cache", "running")


async def test_two_engines_cannot_have_the_same_node(model: Path, nodes: list[NodeProcess]) -> None:
    async with disturbed(plan_over(model, nodes)):
        second = Disturbed(plan_over(model, nodes))
        try:
            with pytest.raises(SkippyError, match="none of the nodes can be used"):
                async with asyncio.timeout(DEADLINE):
                    await second.engine.start()
        finally:
            await second.engine.close()
        warnings = [notice.message for notice in second.of_kind(Notice) if notice.level == "warning"]
        assert len(warnings) == 3
        assert all("works for another engine" in message for message in warnings)
