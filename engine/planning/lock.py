"""A plan that is pinned: a TOML file that says which node serves which layers of which model."""

from __future__ import annotations

import os
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from engine.config.plain import from_plain
from engine.errors import ConfigError, HandshakeRefused, UsageError
from engine.planning.planner import Plan
from engine.planning.prediction import PlacedStage, Placement
from engine.planning.profiles import Cluster, LockedStage, ModelProfile, TopologyLock, to_plain


def lock_of(plan: Plan) -> TopologyLock:
    """The chosen placement of a plan."""
    return TopologyLock(
        fingerprint=plan.model.fingerprint,
        model=plan.model.name,
        stages=tuple(
            LockedStage(stage.node.name, stage.node.url, stage.first, stage.end)
            for stage in plan.chosen.placement
        ),
    )


def write_lock(lock: TopologyLock, path: Path) -> None:
    """Write the file; whoever reads it meanwhile sees the old one. Raises ConfigError."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(tomli_w.dumps(to_plain(lock)), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def is_lock(data: Any) -> bool:
    """Whether the TOML of a topology file is a pinned plan, not a list of running stages."""
    return "fingerprint" in data


def read_lock(path: Path) -> TopologyLock:
    """The pinned plan of a file; raises ConfigError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        lock = from_plain(TopologyLock, data, path.name)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except UsageError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    _check_ranges(lock, path)
    return lock


def check_lock(lock: TopologyLock, fingerprint: str, name: str, n_layers: int) -> None:
    """Raise HandshakeRefused unless the plan was made for this model."""
    if lock.fingerprint != fingerprint:
        raise HandshakeRefused(
            f"the plan was made for {lock.model} ({lock.fingerprint[:12]}), "
            f"not for {name} ({fingerprint[:12]})",
            hint="make a new one: skippy-engine plan MODEL --lock FILE",
        )
    if lock.stages[-1].end != n_layers:
        raise HandshakeRefused(f"the plan ends at layer {lock.stages[-1].end}, {name} has {n_layers}")


def placement_of(lock: TopologyLock, cluster: Cluster, model: ModelProfile) -> Placement:
    """The pinned placement on nodes that are there. Raises HandshakeRefused for another model, a node that is
    not there, or one that is reached at another address."""
    check_lock(lock, model.fingerprint, model.name, model.n_layers)
    nodes = {node.name: node for node in cluster.nodes}
    placement = []
    for stage in lock.stages:
        node = nodes.get(stage.node)
        if node is None:
            raise HandshakeRefused(
                f"the plan puts layers {stage.first}:{stage.end} on {stage.node}, which is not there",
                hint=f"there are {', '.join(nodes)}; start it, or make a new plan",
            )
        if node.url != stage.url:
            found, wanted = node.url or "this machine", stage.url or "this machine"
            raise HandshakeRefused(f"the plan expects {stage.node} at {wanted}, but it is at {found}")
        placement.append(PlacedStage(node, stage.first, stage.end))
    return tuple(placement)


def _check_ranges(lock: TopologyLock, path: Path) -> None:
    edges = [(stage.first, stage.end) for stage in lock.stages]
    whole = edges and edges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(edges))
    if not whole or any(first >= end for first, end in edges):
        shown = ", ".join(f"{first}:{end}" for first, end in edges) or "none"
        raise ConfigError(f"{path}: the layers of its stages do not follow each other: {shown}")
