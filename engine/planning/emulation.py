"""Nodes that a file describes, to see what a plan would be on machines that are not there (`plan --emulate`).

rtt_ms = 20                     # between any two machines, unless a link says otherwise

[[nodes]]
name = "laptop"
own = true                      # the machine that asks
free_gib = 4

[[nodes]]
name = "server"
free_gib = 24
speed = 3                       # three times as fast as this machine

[[links]]
sender = "laptop"
receiver = "server"
rtt_ms = 8
mbps = 100
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config.plain import from_plain
from engine.errors import ConfigError, UsageError
from engine.planning.profiles import ByRows, Cluster, ComputeCosts, LinkProfile, NodeProfile

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EmulatedNode:
    """A machine that computes `speed` times as fast as this one, or as `compute` says."""

    name: str
    free_gib: float
    own: bool = False
    url: str = ""
    speed: float = 1.0
    compute: ComputeCosts | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf or not 0 <= self.free_gib < math.inf:
            raise ConfigError(f"node {self.name}: speed must be above 0, and free_gib not below it")


@dataclass(frozen=True, slots=True)
class EmulatedCluster:
    """What a file may hold."""

    nodes: tuple[EmulatedNode, ...]
    links: tuple[LinkProfile, ...] = ()
    rtt_ms: float = 0.0
    mbps: float = 0.0


def read_emulated(path: Path, own_costs: Callable[[], ComputeCosts]) -> Cluster:
    """The cluster of a file. This machine is timed only if a node is measured by it. Raises ConfigError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        emulated = from_plain(EmulatedCluster, data, path.name)
        costs = own_costs() if any(node.compute is None for node in emulated.nodes) else None
        nodes = tuple(_node(node, costs) for node in emulated.nodes)
        return Cluster(nodes, emulated.links, emulated.rtt_ms, emulated.mbps)
    except UsageError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def _node(node: EmulatedNode, own: ComputeCosts | None) -> NodeProfile:
    compute = node.compute
    if compute is None:
        assert own is not None
        compute = scaled(own, 1 / node.speed)
    return NodeProfile(node.name, round(node.free_gib * _GIB), compute, url=node.url, own=node.own)


def scaled(costs: ComputeCosts, factor: float) -> ComputeCosts:
    """The costs of a machine on which everything takes `factor` times as long."""

    def by_rows(times: ByRows) -> ByRows:
        return tuple(us * factor for us in times)

    return replace(
        costs,
        layer_us=by_rows(costs.layer_us),
        head_us=by_rows(costs.head_us),
        call_us=costs.call_us * factor,
        prefill_us=costs.prefill_us * factor,
        cached_us=costs.cached_us * factor,
        cached_window_us=costs.cached_window_us * factor,
        draft_us=costs.draft_us * factor,
    )
