"""Where to cut a model so that its stages take equally long.

Layers are not equal: the last stage also computes the head, which costs as much as several layers of a small
model. So the machine is timed (`engine.planning.measure`), once for each model and number of threads.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.errors import CutRefused, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.planning.describe import allowed_cuts, head_read_bytes, layer_bytes
from engine.planning.measure import compute_costs
from engine.planning.profiles import MIB

log = logging.getLogger("skippy.planning")


@dataclass(frozen=True, slots=True)
class CostProfile:
    """What one row costs in each layer and in the head: microseconds, or bytes read if not measured."""

    layers: tuple[float, ...]
    head: float
    measured: bool

    def stage_cost(self, first: int, end: int) -> float:
        return sum(self.layers[first:end]) + (self.head if end == len(self.layers) else 0.0)


def balanced_split(
    model: ModelFile, stages: int, threads: int, *, cache_dir: Path | None = None
) -> tuple[int, ...]:
    """First layers of stages 1.., such that the slowest of the stages is as fast as can be.

    Measures when it is asked for the first time, which takes a few seconds; where that is not possible, the
    bytes that a row reads stand for its time. Raises UsageError if there are fewer layers than stages.
    """
    if not 1 <= stages <= model.n_layers:
        raise UsageError(f"{model.name} has {model.n_layers} layers and cannot make {stages} stages")
    if stages == 1:
        return ()
    return best_cuts(cost_profile(model, threads, cache_dir=cache_dir), stages, allowed_cuts(model))


def cost_profile(model: ModelFile, threads: int, *, cache_dir: Path | None = None) -> CostProfile:
    """What single rows cost on this machine; by bytes if it cannot be measured. Never fails."""
    _, read = layer_bytes(model)
    layers, head = read[: model.n_layers], head_read_bytes(model)
    try:
        costs = compute_costs(model, threads, cache_dir=cache_dir)
    except SkippyError as error:
        log.info("the layers of %s cannot be timed, cutting by size: %s", model.name, error)
        return CostProfile(tuple(map(float, layers)), float(head), measured=False)
    us = tuple(costs.layer_us[0] * n_bytes / MIB for n_bytes in layers)
    return CostProfile(us, costs.head_us[0], measured=True)


def best_cuts(profile: CostProfile, stages: int, allowed: frozenset[int]) -> tuple[int, ...]:
    """The cuts with the smallest (slowest stage, sum of squares), by dynamic programming over layers."""
    n_layers = len(profile.layers)

    @cache
    def best(first: int, parts: int) -> tuple[float, float, tuple[int, ...]]:
        if parts == 1:
            cost = profile.stage_cost(first, n_layers)
            return cost, cost * cost, ()
        options = []
        for cut in range(first + 1, n_layers - parts + 2):
            if cut in allowed:
                cost = profile.stage_cost(first, cut)
                slowest, squares, cuts = best(cut, parts - 1)
                options.append((max(cost, slowest), squares + cost * cost, (cut, *cuts)))
        return min(options, default=(math.inf, math.inf, ()))

    cuts = best(0, stages)[2]
    if len(cuts) != stages - 1:  # not enough layers where it can be cut
        raise CutRefused(f"this model cannot be cut into {stages} stages", hint="use fewer stages")
    return cuts
