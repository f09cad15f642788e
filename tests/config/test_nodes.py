"""`[[nodes]]` of skippy.toml and of files that hold nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.layers import read_nodes_file
from engine.config.nodes import NodeSettings
from engine.config.plain import plan_from_dict, plan_to_dict
from engine.config.resolve import plan_to_toml, resolve_plan
from engine.errors import ConfigError

NODES = """
[[nodes]]
name = "server"
url = "wss://server:9555"
token_file = "server.token"
memory_limit_gib = 12
allow_transfer = false
[[nodes]]
name = "laptop"
url = "ws://laptop:9555"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIPPY_TOKEN", "of-the-environment")
    (tmp_path / "server.token").write_text("of-the-file\n")
    path = tmp_path / "skippy.toml"
    path.write_text(NODES)
    return path


def test_nodes_come_with_their_tokens_and_defaults(file: Path) -> None:
    server, laptop = resolve_plan({}, file).nodes
    token_file = str(file.parent / "server.token")
    assert server == NodeSettings("server", "wss://server:9555", "of-the-file", token_file, 12.0, False)
    assert laptop == NodeSettings("laptop", "ws://laptop:9555", "of-the-environment")
    assert (laptop.memory_limit_gib, laptop.allow_transfer) == (0.0, True)


def test_tokens_of_nodes_are_never_printed(file: Path) -> None:
    plan = resolve_plan({}, file)
    printed = plan_to_toml(plan)
    assert "of-the" not in printed + repr(plan)
    (file.parent / "printed.toml").write_text(printed)
    assert resolve_plan({}, file.parent / "printed.toml") == plan
    assert plan_from_dict(plan_to_dict(plan)) == plan


def test_a_nodes_file_holds_nodes_only(file: Path) -> None:
    assert [node.name for node in read_nodes_file(file)] == ["server", "laptop"]
    file.write_text(NODES + "[defaults]\n")
    with pytest.raises(ConfigError, match="unknown key 'defaults'"):
        read_nodes_file(file)
    file.write_text("")
    with pytest.raises(ConfigError, match="names no node"):
        read_nodes_file(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes]\n", r"nodes in .* must be written as \[\[nodes\]\]"),
        ("nodes = [3]\n", r"nodes\[0\] in .* must be a table"),
        ("[[nodes]]\nname = 'a'\n", r"nodes\[0\] in .* lacks url"),
        ("[[nodes]]\nurl = 'ws://a:1'\n", r"nodes\[0\] in .* lacks name"),
        ("[[nodes]]\nname = ''\nurl = 'ws://a:1'\n", r"nodes\[0\] in .* lacks name"),
        (
            "[[nodes]]\nname = 'a'\nurl = 'ws://a:1'\nmemory_limit = 3\n",
            r"'memory_limit' .* did you mean memory_limit_gib\? It takes a number between 0 and 1000000",
        ),
        (
            "[[nodes]]\nname = 'a'\nurl = 'ws://a:1'\n[[nodes]]\nname = 'a'\nurl = 'ws://b:1'\n",
            r"nodes\[1\]\.name in .* is 'a', as another node",
        ),
        ("[[nodes]]\nname = 'a'\nurl = 'ws://a:1'\ntoken_file = 'none'\n", "cannot read the token file"),
    ],
)
def test_a_wrong_node_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve_plan({}, file)
