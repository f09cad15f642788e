"""Which layers go where: the measurements of a run's nodes, handed to the planner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from engine.config.plan import RunPlan
from engine.coordinator.layout import check_split
from engine.errors import CutRefused, UsageError
from engine.model.file import ModelFile
from engine.planning.describe import describe_model
from engine.planning.profiles import MIB, ComputeCosts, LinkProfile, ModelProfile

OWN = "this machine"
"""The name of the engine's machine among those of nodes."""

UNREACHABLE_MS = 60_000.0
"""Round trip between nodes that cannot reach each other: no plan will use it."""

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
    explanation: str = ""


_UNKNOWN = ComputeCosts(layer_us=(1.0,) * 5, head_us=(0.0,) * 5, call_us=0.0, prefill_us=1.0)
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
    return Spans(own, tuple((name, *span) for name, span in zip(nodes, others, strict=False)))


def plan_spans(
    model: ModelFile, machines: Sequence[Machine], ways: Sequence[LinkProfile], plan: RunPlan, context: int
) -> Spans:
    """Spread the layers over the machines in their order, so that the slowest is as fast as can be.

    `machines` begins with the engine's own. Raises CutRefused if the model cannot be cut into so many stages.
    """
    known = next((machine.costs for machine in machines if machine.costs is not None), _UNKNOWN)
    costs = [machine.costs or known for machine in machines]
    cuts = _spread(describe_model(model), costs)
    own, *others = itertools.pairwise((0, *cuts, model.n_layers))
    named = ((machine.name, *span) for machine, span in zip(machines[1:], others, strict=True))
    return Spans(own, tuple(named))


def _spread(model: ModelProfile, costs: Sequence[ComputeCosts]) -> tuple[int, ...]:
    """The cuts with the smallest (slowest stage, sum of squares), by dynamic programming over layers."""
    n_layers = model.n_layers

    def stage_us(machine: int, first: int, end: int) -> float:
        read = sum(layer.read_bytes for layer in model.layers[first:end]) / MIB
        head = costs[machine].head_us[0] if end == n_layers else 0.0
        return costs[machine].call_us + costs[machine].layer_us[0] * read + head

    @cache
    def best(first: int, machine: int) -> tuple[float, float, tuple[int, ...]]:
        if machine == len(costs) - 1:
            us = stage_us(machine, first, n_layers)
            return us, us * us, ()
        options = []
        for cut in model.cuts:
            if cut > first:
                us = stage_us(machine, first, cut)
                slowest, squares, cuts = best(cut, machine + 1)
                options.append((max(us, slowest), squares + us * us, (cut, *cuts)))
        return min(options, default=(math.inf, math.inf, ()))

    cuts = best(0, 0)[2]
    if len(cuts) != len(costs) - 1:
        raise CutRefused(f"{model.name} cannot be cut into {len(costs)} stages", hint="name fewer nodes")
    return cuts
