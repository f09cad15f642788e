"""Every key of `[[nodes]]` takes effect, and settings of computing reach stages wherever they run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tomli_w

from engine.config.nodes import NODE_KEYS, NodeSettings
from engine.config.plan import ComputePlan
from engine.config.resolve import resolve_plan
from engine.errors import SkippyError
from engine.events import NodeState, Notice
from tests.faults.harness import Disturbed, disturbed, plan
from tests.faults.tiny_llama import write_tiny_llama
from tests.stage.nodes import TOKEN, waiting_node

COMPUTE = ComputePlan(threads=1, exact=True, context=640, sequences=2, prefill_rows=48)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("engine.planning.measure._SECONDS", 0.1)
    (tmp_path / "right").write_text(TOKEN)
    (tmp_path / "wrong").write_text("another")
    return write_tiny_llama(tmp_path / "tiny.gguf")


@dataclass(frozen=True)
class Outcome:
    """What became of a run over one node."""

    names: frozenset[str]  # by which the node is told of
    said: str  # the error, and the warnings before it; empty if the run is ready


async def run_over(entry: dict[str, object], folder: Path, model: Path, split: str | None) -> Outcome:
    """Start an engine over the node of a file."""
    file = folder / "skippy.toml"
    file.write_text(tomli_w.dumps({"nodes": [entry]}))
    cuts = {"split": split} if split else {"stages": "2"}
    flags = {"model": str(model), "use_nodes": True, "threads": "1", "context": "256", **cuts}
    running = Disturbed(resolve_plan(flags, file))
    fault = ""
    try:
        await running.engine.start()
    except SkippyError as error:
        told = [notice.message for notice in running.of_kind(Notice) if notice.level == "warning"]
        fault = " ".join([*told, str(error)])
    finally:
        await running.engine.close()
    return Outcome(frozenset(state.name for state in running.of_kind(NodeState)), fault)


CASES: dict[str, tuple[object, frozenset[str], str, str | None]] = {
    "name": ("third", frozenset({"third"}), "", "3"),
    "url": ("ws://127.0.0.1:1", frozenset({"second"}), "nothing listens at", "3"),
    "token_file": ("wrong", frozenset({"second"}), "refused the token", "3"),
    "memory_limit_gib": (1e-6, frozenset({"second"}), "cannot be placed in 2 stages", None),
    "allow_transfer": (False, frozenset({"second"}), "no copy of layers 3:6", "3"),
}
"""For each key a value, the names that are told then, what is said, and the cuts (none: they are chosen)."""


def test_every_key_of_a_node_has_a_case() -> None:
    assert set(CASES) == set(NODE_KEYS)


@pytest.mark.parametrize("key", CASES)
async def test_a_key_of_a_node_takes_effect(key: str, model: Path, tmp_path: Path) -> None:
    value, names, said, split = CASES[key]
    async with waiting_node() as (_, url):
        usual: dict[str, object] = {"name": "second", "url": url, "token_file": "right"}
        assert await run_over(usual, tmp_path, model, split) == Outcome(frozenset({"second"}), "")
    for slice_ in (tmp_path / "cache").rglob("layers-*"):
        slice_.unlink()
    async with waiting_node() as (_, url):
        changed = await run_over({**usual, "url": url, key: value}, tmp_path, model, split)
    assert changed.names == names
    assert said in changed.said
    assert bool(said) == bool(changed.said)


def settings_of_stages(running: Disturbed) -> list[ComputePlan]:
    """What every stage of a running engine says of itself."""
    chain = running.engine._slots.slots[0].chain
    assert chain is not None
    return [
        ComputePlan(
            threads=info.threads,
            exact=info.exact,
            context=info.context,
            sequences=info.sequences,
            prefill_rows=info.prefill_rows,
        )
        for info in chain.stages
    ]


async def test_settings_of_computing_reach_local_stages(model: Path) -> None:
    async with disturbed(replace(plan(model, (2, 4)), compute=COMPUTE)) as running:
        assert settings_of_stages(running) == [COMPUTE] * 3


async def test_settings_of_computing_reach_stages_on_nodes(model: Path) -> None:
    async with waiting_node() as (_, url):
        nodes = (NodeSettings("second", url, TOKEN),)
        over_nodes = replace(plan(model, (3,), use_nodes=True), compute=COMPUTE, nodes=nodes)
        async with disturbed(over_nodes) as running:
            assert settings_of_stages(running) == [COMPUTE] * 2
