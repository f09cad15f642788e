"""Machines that a file describes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import tomli_w

from engine.errors import ConfigError
from engine.planning.emulation import read_emulated
from engine.planning.profiles import Cluster, ComputeCosts, to_plain
from tests.planning.machines import costs

FILE = """
rtt_ms = 20

[[nodes]]
name = "laptop"
own = true
free_gib = 4

[[nodes]]
name = "server"
free_gib = 24
speed = 2

[[nodes]]
name = "box"
free_gib = 1

[[links]]
sender = "laptop"
receiver = "server"
rtt_ms = 8
mbps = 100
"""


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "nodes.toml"
    path.write_text(text)
    return read_emulated(path, costs)


def test_nodes_are_measured_by_this_machine(tmp_path: Path) -> None:
    cluster = read(tmp_path, FILE)
    laptop, server, _ = cluster.nodes
    assert cluster.own is laptop
    assert laptop.compute == costs()
    assert asdict(server.compute) == pytest.approx(
        {key: _halved(value) for key, value in asdict(costs()).items()}
    )
    assert server.free_bytes == 24 << 30


def _halved(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(item / 2 for item in value)
    return value / 2 if isinstance(value, float) else value


def test_links_that_are_not_given_are_like_the_way_back_or_like_all(tmp_path: Path) -> None:
    cluster = read(tmp_path, FILE)
    assert cluster.link("laptop", "server").one_way_ms(1e6) == 4 + 80
    assert cluster.link("server", "laptop").rtt_ms == 8
    assert cluster.link("server", "box").rtt_ms == 20
    assert cluster.link("box", "box").rtt_ms == 0


def test_costs_that_are_given_need_no_measurement(tmp_path: Path) -> None:
    given = {"nodes": [{"name": "n", "own": True, "free_gib": 1, "compute": to_plain(costs(3))}]}
    path = tmp_path / "nodes.toml"
    path.write_text(tomli_w.dumps(given))

    def never() -> ComputeCosts:
        raise AssertionError

    assert read_emulated(path, never).own.compute == costs(3)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("own = true", "", "own = true"),
        ("own = true", "own = 1", "nodes.0..own must be true or false"),
        ("speed = 2", "speed = 0", "speed must be above 0"),
        ("speed = 2", "sped = 2", "did you mean speed"),
        ('name = "box"', 'name = "server"', "a name of its own"),
        ('receiver = "server"', 'receiver = "serve"', "'serve', which is no node"),
        ("rtt_ms = 8", "rtt_ms = -1", "must be 0 or more"),
        ("[[links]]", "[[links", "not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, old: str, new: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as caught:
        read(tmp_path, FILE.replace(old, new))
    assert "nodes.toml" in str(caught.value)
