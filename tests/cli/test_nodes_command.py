"""Machines that wait for layers, with one command on each and one in front."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.cli.programs import environment
from tests.faults.tiny_llama import write_tiny_llama
from tests.stage.nodes import DEADLINE, NodeProcess, node_processes

PLAN = (sys.executable, "-m", "engine.cli.main", "plan", "tiny.gguf", "--json")
PROMPT = (sys.executable, "-m", "engine.cli.prompt", "--json", "--log-format", "json")
ASKED = ("--model", "tiny.gguf", "--threads", "1", "--ctx", "256", "--max-tokens", "24", "Tell me a story.")


async def front(home: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result of one command, and what it logged."""
    process = await asyncio.create_subprocess_exec(
        *PROMPT,
        *arguments,
        *ASKED,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env=environment(home),
    )
    async with asyncio.timeout(DEADLINE):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out), [json.loads(line) for line in err.decode().splitlines()]


def ready_nodes(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was told last of each node."""
    return {event["name"]: event for event in events if event.get("kind") == "node"}


async def test_one_command_on_each_machine_and_one_in_front(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf")
    alone, _ = await front(tmp_path, "--stages", "1")
    async with node_processes(tmp_path, 3) as nodes:

        async def over_nodes(nodes: list[NodeProcess]) -> dict[str, dict[str, Any]]:
            named = [word for node in nodes for word in ("--node", node.url)]
            result, events = await front(tmp_path, *named, "--token-file", "token", "--split", "1,3,5")
            assert result["token_ids"] == alone["token_ids"]
            assert [stage["layers"] for stage in result["stages"]] == [[0, 1], [1, 3], [3, 5], [5, 6]]
            return ready_nodes(events)

        for state in (await over_nodes(nodes)).values():
            assert (state["state"], state["detail"]) == ("ready", "received")
            assert 0 < state["bytes_sent"] <= state["total"] < (tmp_path / "tiny.gguf").stat().st_size
        for node in nodes:
            await node.start()
        again = await over_nodes(nodes)
        assert len(again) == 3
        assert {(state["detail"], state["bytes_sent"]) for state in again.values()} == {("cache", 0)}


async def test_a_pinned_plan_is_predicted_on_the_nodes_that_it_names(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf")

    async def plan(*arguments: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *PLAN,
            *("--threads", "1", "--ctx", "256"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        async with asyncio.timeout(DEADLINE):
            out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)["chosen"]["stages"]

    async with node_processes(tmp_path, 1) as (node,):
        named = ("--node", node.url, "--token-file", "token")
        pinned = await plan(*named, "--stages", "2", "--lock", "two.toml")
        again = await plan("--topology", "two.toml")
        await plan(*named, "--stages", "1", "--lock", "one.toml")
    assert [stage["url"] for stage in again] == ["", node.url]
    assert [stage["layers"] for stage in again] == [stage["layers"] for stage in pinned]
    (alone,) = await plan("--topology", "one.toml")
    assert (alone["url"], alone["layers"]) == ("", [0, 6])
