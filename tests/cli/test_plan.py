"""`skippy-engine plan`, and what `--topology` does with a pinned plan."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from engine.cli.main import main
from engine.cli.prompt import main as prompt_main
from engine.model.file import ModelFile
from engine.planning.lock import read_lock, write_lock
from engine.planning.profiles import ComputeCosts, LockedStage, TopologyLock, to_plain
from tests.cli.programs import environment
from tests.model.gguf_files import N_LAYERS, write_small_model

COSTS = ComputeCosts(layer_us=(1e5,) * 7, head_us=(1e3,) * 7, call_us=100.0, prefill_us=1e5)

Tool = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """Calls `skippy-engine plan small.gguf`, or `skippy-prompt` if told so, in the test's own folder."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    write_small_model(tmp_path / "small.gguf")

    def call(*arguments: str, program: str = "plan") -> tuple[int, str, str]:
        code = prompt_main(arguments) if program == "prompt" else main(["plan", "small.gguf", *arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    return call


def machines(folder: Path, *, free_gib: float = 4.0, rtt_ms: float = 20.0) -> None:
    """Two alike machines, written to `machines.toml`."""
    alike = {"free_gib": free_gib, "compute": to_plain(COSTS)}
    nodes = [{"name": "front", "own": True, **alike}, {"name": "server", "url": "ws://server:1", **alike}]
    (folder / "machines.toml").write_text(tomli_w.dumps({"rtt_ms": rtt_ms, "nodes": nodes}))


def test_only_who_chooses_a_split_is_told_that_one_machine_is_faster(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path)
    code, out, err = tool("--emulate", "machines.toml", "--ctx", "128")
    assert code == 0
    assert "* " in out
    assert f"front 0:{N_LAYERS}" in out
    assert "Left out" in out
    assert "This one machine alone is faster than any split" in out
    assert err == ""
    code, out, _ = tool("--emulate", "machines.toml", "--ctx", "128", "--json")
    data = json.loads(out)
    assert data["chosen"]["tpot_ms"] < min(each["tpot_ms"] for each in data["candidates"][1:])
    assert data["warnings"] == []
    _, out, err = tool("--emulate", "machines.toml", "--ctx", "128", "--json", "--stages", "2")
    data = json.loads(out)
    assert [stage["node"] for stage in data["chosen"]["stages"]] == ["front", "server"]
    assert f"{data['one_machine']['tokens_per_second']:.1f} tok/s" in data["warnings"][0]
    assert "warning: one machine alone is faster: front makes" in err


def test_a_model_that_fits_nowhere_is_an_error_that_counts(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path, free_gib=0.00001)
    code, out, err = tool("--emulate", "machines.toml", "--ctx", "128")
    assert (code, out) == (1, "")
    assert "GiB of memory are missing" in err
    assert len(err.splitlines()) == 1


def test_a_plan_needs_machines(tool: Tool, tmp_path: Path) -> None:
    code, _, err = tool()
    assert code == 2
    assert "--node URL, --nodes FILE or --emulate FILE" in err
    assert tool("--emulate", "nothing.toml")[0] == 2
    machines(tmp_path)
    for wrong in (("--acceptance", "2"), ("--target-tpot-ms", "0"), ("--prompt-tokens", "none")):
        code, _, err = tool("--emulate", "machines.toml", *wrong)
        assert code == 2
        assert repr(wrong[1]) in err


def test_a_pinned_plan_can_be_judged_and_fits_its_model_only(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path)
    wanted = ("--emulate", "machines.toml", "--ctx", "128")
    assert tool(*wanted, "--stages", "2", "--lock", "plan.toml")[0] == 0
    code, out, _ = tool(*wanted, "--topology", "plan.toml", "--json")
    assert code == 0
    stages = json.loads(out)["chosen"]["stages"]
    assert [(stage["node"], stage["url"]) for stage in stages] == [("front", ""), ("server", "ws://server:1")]
    pinned = tmp_path / "plan.toml"
    fingerprint = ModelFile.open(tmp_path / "small.gguf").fingerprint
    pinned.write_text(pinned.read_text().replace(fingerprint, "0" * 32))
    code, _, err = tool(*wanted, "--topology", "plan.toml")
    assert code == 1
    assert "the plan was made for Small (000000000000), not for Small" in err


def lock(folder: Path, *stages: LockedStage) -> None:
    fingerprint = ModelFile.open(folder / "small.gguf").fingerprint
    write_lock(TopologyLock(fingerprint, "Small", stages), folder / "plan.toml")


def test_a_run_takes_nodes_cuts_and_model_from_a_pinned_plan(tool: Tool, tmp_path: Path) -> None:
    lock(tmp_path, LockedStage("this machine", "", 0, 1), LockedStage("server", "ws://server:1", 1, N_LAYERS))
    (tmp_path / "token").write_text("secret\n")
    pinned = ("--model", "small.gguf", "--topology", "plan.toml", "--token-file", "token")
    code, out, _ = tool(*pinned, "--print-config", program="prompt")
    assert code == 0
    data = tomllib.loads(out)
    topology = data["defaults"]["topology"]
    assert (topology["use_nodes"], topology["split"]) == (True, [1])
    assert topology["fingerprint"] == ModelFile.open(tmp_path / "small.gguf").fingerprint
    (node,) = data["nodes"]
    assert (node["name"], node["url"]) == ("server", "ws://server:1")
    assert node["token_file"] == str(tmp_path / "token")


def test_a_pinned_plan_needs_no_nodes_in_the_call(tool: Tool, tmp_path: Path) -> None:
    away = "ws://127.0.0.1:1"  # where nobody listens
    lock(tmp_path, LockedStage("this machine", "", 0, 1), LockedStage("server", away, 1, N_LAYERS))
    code, out, err = tool("--topology", "plan.toml", "--ctx", "128")
    assert (code, out) == (1, "")
    assert "server is left out" in err or "none of the nodes can be used" in err


def test_the_token_file_of_a_node_is_in_its_pinned_plan(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path)
    for name in ("server.token", "other.token"):
        (tmp_path / name).write_text("secret\n")
    node = {"name": "server", "url": "ws://server:1", "token_file": "server.token"}
    (tmp_path / "nodes.toml").write_text(tomli_w.dumps({"nodes": [node]}))
    wanted = ("--emulate", "machines.toml", "--nodes", "nodes.toml", "--ctx", "128", "--stages", "2")
    assert tool(*wanted, "--lock", "plan.toml")[0] == 0
    assert "secret" not in (tmp_path / "plan.toml").read_text()
    pinned = ("--model", "small.gguf", "--topology", "plan.toml", "--print-config")

    def token_file(*more: str) -> str:
        (found,) = tomllib.loads(tool(*pinned, *more, program="prompt")[1])["nodes"]
        return str(found["token_file"])

    assert token_file() == str(tmp_path / "server.token")
    assert token_file("--token-file", "other.token") == str(tmp_path / "other.token")


def test_a_pinned_node_that_must_not_receive_still_must_not(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path)
    node = {"name": "server", "url": "ws://server:1", "allow_transfer": False, "memory_limit_gib": 2.5}
    (tmp_path / "nodes.toml").write_text(tomli_w.dumps({"nodes": [node]}))
    wanted = ("--emulate", "machines.toml", "--nodes", "nodes.toml", "--ctx", "128", "--stages", "2")
    assert tool(*wanted, "--lock", "plan.toml")[0] == 0
    pinned = ("--model", "small.gguf", "--topology", "plan.toml", "--print-config")
    (found,) = tomllib.loads(tool(*pinned, program="prompt")[1])["nodes"]
    assert found == node


def test_a_printed_pinned_plan_reads_back_as_the_same_plan(tool: Tool, tmp_path: Path) -> None:
    node = LockedStage("server", "ws://server:1", 1, N_LAYERS, "token", 2.5, allow_transfer=False)
    lock(tmp_path, LockedStage("this machine", "", 0, 1), node)
    (tmp_path / "token").write_text("secret\n")
    pinned = ("--model", "small.gguf", "--topology", "plan.toml", "--print-config")
    code, printed, _ = tool(*pinned, program="prompt")
    assert code == 0
    (tmp_path / "again.toml").write_text(printed)
    assert tool("--config", "again.toml", "--print-config", program="prompt") == (0, printed, "")


def test_nodes_may_be_named_in_the_call(tool: Tool, tmp_path: Path) -> None:
    machines(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    named = ("--node", "ws://server:1", "--token-file", "token")
    wanted = ("--emulate", "machines.toml", "--ctx", "128", "--stages", "2", "--lock", "plan.toml")
    assert tool(*named, *wanted)[0] == 0
    assert read_lock(tmp_path / "plan.toml").stages[1].token_file == str(tmp_path / "token")


def test_a_node_in_the_call_that_answers_to_nobody_is_an_error_of_the_run(tool: Tool) -> None:
    code, out, err = tool("--node", "ws://127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "none of the nodes can be used" in err


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (("--node", "ws://a:1", "--nodes", "nodes.toml"), "--node and --nodes exclude each other"),
        (("--node", "ws://a:1", "--node", "ws://a:1"), "--node ws://a:1 is given twice"),
        (("--node", "a"), "--node"),
        (("--token-file", "token"), "--token-file needs --node"),
    ],
)
def test_nodes_that_are_named_wrongly_are_refused(tool: Tool, wrong: tuple[str, ...], fault: str) -> None:
    code, _, err = tool(*wrong)
    assert code == 2
    assert fault in err


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (("--split", "2"), "--split and plan.toml exclude each other"),
        (("--stages", "2"), "--stages and plan.toml exclude each other"),
        (("--node", "ws://other:1"), "--node and plan.toml exclude each other"),
    ],
)
def test_what_contradicts_a_pinned_plan_is_refused(
    tool: Tool, tmp_path: Path, more: tuple[str, ...], fault: str
) -> None:
    lock(tmp_path, LockedStage("this machine", "", 0, 1), LockedStage("server", "ws://server:1", 1, N_LAYERS))
    code, _, err = tool("--model", "small.gguf", "--topology", "plan.toml", *more, program="prompt")
    assert code == 2
    assert fault in err


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (("--split", "1"), "--split needs one cut for each --node: 2, not 1"),
        (("--stages", "5"), "--stages 5 needs 4 nodes besides this machine, and --node names 2"),
    ],
)
def test_nodes_without_layers_and_stages_without_nodes_are_refused(
    tool: Tool, more: tuple[str, ...], fault: str
) -> None:
    named = ("--node", "ws://a:1", "--node", "ws://b:1", "--model", "small.gguf")
    code, _, err = tool(*named, *more, program="prompt")
    assert code == 2
    assert fault in err
    for enough in (("--split", "1,2"), ("--stages", "2"), ()):
        assert tool(*named, *enough, "--print-config", program="prompt")[0] == 0


def test_a_pinned_plan_without_this_machine_in_front_is_refused(tool: Tool, tmp_path: Path) -> None:
    lock(tmp_path, LockedStage("server", "ws://server:1", 0, N_LAYERS))
    code, _, err = tool("--model", "small.gguf", "--topology", "plan.toml", program="prompt")
    assert code == 2
    assert "puts the first layers on server" in err
