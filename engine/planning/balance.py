"""Where to cut a model so that its stages have equally much to do.

Stages work at the same time on the chunks of a prompt, on windows that follow each other without waiting, and
on several requests. Then the slowest stage sets the pace. A request that is decoded plainly passes one stage
after the other, so where they begin makes no difference to it.

The head, which the last stage computes, is a large part of a window of a small model, and no part of a
prompt's chunk: for either alone the cut would be elsewhere. So the work is taken to be half prompts and
half windows, by the time that one machine would spend on them. A stage's share of it is the mean of its
shares of both, a sum over its layers, and the best cuts make the largest share as small as can be. That
share bounds what the stages get done: one over it times what one machine does (the utilization law, Denning
and Buzen 1978).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from engine.errors import CutRefused, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.planning.describe import allowed_cuts, head_read_bytes, layer_bytes
from engine.planning.measure import compute_costs
from engine.planning.profiles import MIB

log = logging.getLogger("skippy.planning")

WINDOWS = 0.5  # of the time; the rest goes into prompts


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Each layer's share of the work and the head's, together 1: measured, or by the bytes that are read."""

    layers: tuple[float, ...]
    head: float
    measured: bool

    def stage_cost(self, first: int, end: int) -> float:
        return sum(self.layers[first:end]) + (self.head if end == len(self.layers) else 0.0)


def balanced_split(
    model: ModelFile, stages: int, threads: int, *, cache_dir: Path | None = None
) -> tuple[int, ...]:
    """First layers of stages 1.., such that the stage with most of the work has as little as can be.

    Measures when it is asked for the first time, which takes a few seconds; where that is not possible, the
    bytes that a row reads stand for its time. Raises UsageError if there are fewer layers than stages.
    """
    if not 1 <= stages <= model.n_layers:
        raise UsageError(f"{model.name} has {model.n_layers} layers and cannot make {stages} stages")
    if stages == 1:
        return ()
    return best_cuts(cost_profile(model, threads, cache_dir=cache_dir), stages, allowed_cuts(model))


def cost_profile(model: ModelFile, threads: int, *, cache_dir: Path | None = None) -> CostProfile:
    """What the parts of a model cost on this machine; by bytes if it cannot be measured. Never fails."""
    _, read = layer_bytes(model)
    mib = [n_bytes / MIB for n_bytes in read[: model.n_layers]]
    try:
        costs = compute_costs(model, threads, cache_dir=cache_dir)
    except SkippyError as error:
        log.info("the layers of %s cannot be timed, cutting by size: %s", model.name, error)
        return _profile(mib, [(1.0, head_read_bytes(model) / MIB)], measured=False)
    return _profile(mib, [*zip(costs.layer_us, costs.head_us, strict=True)], measured=True)


def _profile(mib: list[float], windows: list[tuple[float, float]], *, measured: bool) -> CostProfile:
    """The profile of layers that read `mib` each, from the costs (per MiB, head) of windows.

    Layers cost in proportion to what is read of them, in windows and chunks alike (`ComputeCosts`), so the
    head's share says it all. It is the mean over windows of all sizes: which come up is up to the text.
    """
    head = WINDOWS * mean(head / (per_mib * sum(mib) + head) for per_mib, head in windows)
    return CostProfile(tuple((1 - head) * part / sum(mib) for part in mib), head, measured)


def best_cuts(profile: CostProfile, stages: int, allowed: frozenset[int]) -> tuple[int, ...]:
    """The cuts with the smallest (largest share, sum of squares), by dynamic programming over layers.

    Exact, since the share of a stage depends on nothing but its own layers.
    """
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
