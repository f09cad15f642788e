"""Plans that are pinned in a file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from engine.config.nodes import NodeSettings
from engine.errors import ConfigError, HandshakeRefused
from engine.planning.lock import node_of, read_lock, write_lock
from engine.planning.pinned import lock_of, placement_of
from engine.planning.planner import plan_placement
from engine.planning.prediction import Drafting
from engine.planning.profiles import LockedStage
from tests.planning.machines import SMALL, cluster, model, node

MACHINES = cluster([node("front", 7, own=True), node("server", 9)], 5)
MODEL = model([1.0] * 10)
SERVER = NodeSettings(
    "server", "ws://server:9555", "secret", "/home/server.token", 12.5, allow_transfer=False
)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    plan = plan_placement(MACHINES, MODEL, SMALL, Drafting(0))
    write_lock(lock_of(plan, [SERVER]), tmp_path / "plan.toml")
    return tmp_path / "plan.toml"


def test_a_pinned_plan_is_read_as_it_was_chosen(locked: Path) -> None:
    plan = plan_placement(MACHINES, MODEL, SMALL, Drafting(0))
    assert placement_of(read_lock(locked), MACHINES, MODEL) == plan.chosen.placement
    assert [path.name for path in locked.parent.iterdir()] == ["plan.toml"]


def test_a_pinned_plan_keeps_all_that_is_set_for_a_node_but_its_token(locked: Path) -> None:
    own, pinned = read_lock(locked).stages
    node = node_of(pinned, locked.parent)
    for item in fields(NodeSettings):
        value, default = getattr(SERVER, item.name), item.default
        assert value != default, f"this test says nothing of {item.name}"
        assert getattr(node, item.name) == (value if item.name != "token" else ""), item.name
    assert "secret" not in locked.read_text()
    assert own == LockedStage("front", "", own.first, own.end)


def test_the_token_file_of_a_node_may_be_beside_the_plan(locked: Path) -> None:
    pinned = replace(read_lock(locked).stages[1], token_file="server.token")
    assert node_of(pinned, locked.parent).token_file == str(locked.parent / "server.token")


def test_another_model_another_node_or_another_address_is_refused(locked: Path) -> None:
    lock = read_lock(locked)
    with pytest.raises(HandshakeRefused, match="made for paper"):
        placement_of(lock, MACHINES, replace(MODEL, fingerprint="1" * 32))
    with pytest.raises(HandshakeRefused, match="on server, which is not there"):
        placement_of(lock, cluster([node("front", 7, own=True)], 5), MODEL)
    moved = replace(node("server", 9), url="ws://elsewhere:9555")
    with pytest.raises(HandshakeRefused, match="at ws://server:9555, but it is at ws://elsewhere:9555"):
        placement_of(lock, cluster([node("front", 7, own=True), moved], 5), MODEL)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("first = 0", "first = 1", "do not follow each other"),
        ('node = "server"', 'nod = "server"', "no field 'nod'"),
        ("fingerprint =", "fingerprint", "not valid TOML"),
    ],
)
def test_a_damaged_file_is_refused_by_name(locked: Path, old: str, new: str, fault: str) -> None:
    locked.write_text(locked.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=fault) as caught:
        read_lock(locked)
    assert "plan.toml" in str(caught.value)


def test_no_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_lock(tmp_path / "none.toml")
