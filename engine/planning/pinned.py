"""A plan as a pinned one, and back to the nodes that are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.config.nodes import NodeSettings
from engine.errors import HandshakeRefused
from engine.planning.planner import Plan
from engine.planning.prediction import PlacedStage, Placement
from engine.planning.profiles import Cluster, LockedStage, ModelProfile, TopologyLock


def lock_of(plan: Plan, nodes: Iterable[NodeSettings] = ()) -> TopologyLock:
    """The chosen placement of a plan, with what is set for its nodes; they are known by their URL."""
    known = {node.url: node for node in nodes}
    return TopologyLock(
        fingerprint=plan.model.fingerprint,
        model=plan.model.name,
        stages=tuple(_locked(stage, known.get(stage.node.url)) for stage in plan.chosen.placement),
    )


def _locked(stage: PlacedStage, node: NodeSettings | None) -> LockedStage:
    locked = LockedStage(stage.node.name, stage.node.url, stage.first, stage.end)
    if node is None:
        return locked
    return replace(
        locked,
        token_file=node.token_file,
        memory_limit_gib=node.memory_limit_gib,
        allow_transfer=node.allow_transfer,
    )


def placement_of(lock: TopologyLock, cluster: Cluster, model: ModelProfile) -> Placement:
    """The pinned placement on nodes that are there. Raises HandshakeRefused for another model, a node that is
    not there, or one that is reached at another address."""
    if (lock.fingerprint, lock.stages[-1].end) != (model.fingerprint, model.n_layers):
        raise HandshakeRefused(
            f"the plan was made for {lock.model} ({lock.fingerprint[:12]}), "
            f"not for {model.name} ({model.fingerprint[:12]})",
            hint="make a new one: skippy-engine plan MODEL --lock FILE",
        )
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
