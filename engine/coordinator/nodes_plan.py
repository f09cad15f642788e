"""Which layers go where: the measurements of a run's nodes, handed to the planner."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.config.plan import RunPlan
from engine.coordinator.layout import check_split
from engine.errors import ConfigError, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.model.paths import cache_dir
from engine.planning.costs import StageCosts
from engine.planning.describe import describe_model
from engine.planning.explain import explanation, warnings
from engine.planning.lock import read_lock, write_lock
from engine.planning.pinned import lock_of, placement_of
from engine.planning.planner import Plan, judge, plan_placement
from engine.planning.prediction import Drafting
from engine.planning.profiles import WINDOW_ROWS, Cluster, ComputeCosts, Demand, LinkProfile, NodeProfile

OWN = "this machine"
"""The name of the engine's machine among those of nodes."""

UNREACHABLE_MS = 60_000.0
"""Round trip between nodes that cannot reach each other: no plan will use it."""

WORTH_MOVING = 0.15
"""Share of the time per token that another placement has to save before slices are sent anew."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """The engine's own machine, or a node. `costs` is None if it could not be timed."""

    name: str
    url: str  # "" for the engine's own
    free_bytes: int
    threads: int
    costs: ComputeCosts | None


@dataclass(frozen=True, slots=True)
class Spans:
    """Layers of the engine itself, then those of nodes by name, in the order of the chain."""

    own: Span
    on_nodes: tuple[tuple[str, int, int], ...]
    explanation: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


_UNKNOWN = ComputeCosts(
    layer_us=(1.0,) * len(WINDOW_ROWS), head_us=(0.0,) * len(WINDOW_ROWS), call_us=0.0, prefill_us=1.0
)
"""Where no machine could be timed: layers take as long as the bytes that they read."""


def pinned_spans(split: tuple[int, ...], n_layers: int, nodes: Sequence[str]) -> Spans:
    """The cuts that somebody gave, over the nodes in their order. Raises UsageError."""
    check_split(split, n_layers)
    if len(split) > len(nodes):
        raise UsageError(
            f"{len(split)} cuts need {len(split)} nodes besides this machine, and {len(nodes)} can be used",
            hint="name more nodes, or cut less often",
        )
    own, *others = itertools.pairwise((0, *split, n_layers))
    used, unused = nodes[: len(split)], nodes[len(split) :]
    left_out = f"no layers are left for {', '.join(unused)}: give as many cuts as there are nodes"
    return Spans(
        own,
        tuple((name, *span) for name, span in zip(used, others, strict=True)),
        warnings=(left_out,) if unused else (),
    )


def plan_spans(model: ModelFile, cluster: Cluster, plan: RunPlan, context: int) -> Spans:
    """The placement with the least predicted time per token; in as many stages as the plan says, if it does.

    The engine's own machine serves the first layers: the token embedding stays with it. Raises SkippyError
    `memory` if the model does not fit.
    """
    compute, rows = plan.compute, max(plan.compute.prefill_rows, plan.speculation.window_max + 1)
    demand = Demand(context=context, sequences=compute.sequences, batch_rows=rows)
    speculation = plan.speculation
    drafting = Drafting(
        speculation.draft_max if _may_draft(speculation.strategy) else 0,
        depth=speculation.pipeline_depth if speculation.window_policy == "goodput" else 1,
    )
    asked, machines = plan.topology.stages, len(cluster.nodes)
    stages = min(asked, machines)
    best = plan_placement(cluster, describe_model(model), demand, drafting, stages=stages, own_first=True)
    file = cache_dir() / "placements" / f"{model.fingerprint}.toml"
    chosen = _of_last_time(file, best) or best
    _remember(file, chosen)
    first, *others = chosen.chosen.placement
    spans = tuple((stage.node.name, stage.first, stage.end) for stage in others)
    fewer = f"{stages} stages instead of {asked}: only {machines} machines can be used, this one included"
    warned = [*([fewer] if stages < asked else []), *warnings(chosen)]
    return Spans((first.first, first.end), spans, tuple(explanation(chosen)), tuple(warned))


def _of_last_time(file: Path, best: Plan) -> Plan | None:
    """The placement of the last run, if it is still possible and about as good as the best one: what is
    measured wavers a little, and the nodes have the slices of that one."""
    try:
        placement = placement_of(read_lock(file), best.cluster, best.model)
    except SkippyError:
        return None
    costs = StageCosts(best.model, best.demand)
    fits = all(costs.bytes_of(stage.first, stage.end) <= stage.node.free_bytes for stage in placement)
    if not fits or len(placement) != best.chosen.stages or not placement[0].node.own:
        return None
    plan = judge(best.cluster, best.model, placement, best.demand, best.drafting)
    worth = best.chosen.prediction.tpot_ms * (1 + WORTH_MOVING)
    return plan if plan.chosen.prediction.tpot_ms <= worth else None


def _remember(file: Path, plan: Plan) -> None:
    """Without it the next start may choose anew, and no more than that."""
    with suppress(OSError, ConfigError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_lock(lock_of(plan), file)


def _may_draft(strategy: str) -> bool:
    """Whether the head of the model itself may draft."""
    return strategy == "auto" or strategy.startswith("mtp")


def cluster_of(machines: Sequence[Machine], ways: Sequence[LinkProfile]) -> Cluster:
    """What was measured, for the planner. Machines that could not be timed are taken to be like the first
    that could."""
    known = next((machine.costs for machine in machines if machine.costs is not None), _UNKNOWN)
    profiles = (
        NodeProfile(
            name=machine.name,
            free_bytes=machine.free_bytes,
            compute=machine.costs or known,
            url=machine.url,
            threads=max(1, machine.threads),
            own=not machine.url,
        )
        for machine in machines
    )
    return Cluster(tuple(profiles), tuple(ways))
