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
