"""The placement of layers as a problem of numbers: a path through nodes that covers all layers in order.

Time per token is a sum over stages and hops, so whatever a stage costs depends on its node and its layers
alone. Nothing here knows what a model is; `engine.planning.costs` makes the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEP = 0.02  # share by which a slowest stage has to be faster to be worth a look


@dataclass(frozen=True, slots=True, eq=False)
class PlacementProblem:
    """Milliseconds, infinite where something is not possible.

    Attributes:
        stage: (nodes, layers + 1, layers + 1): layers a to b (not included) on a node.
        hop: (nodes, nodes): from one stage to the next.
        enter: (nodes): from the coordinator to the first stage.
        leave: (nodes): from the last stage back to the coordinator.
    """

    stage: Floats
    hop: Floats
    enter: Floats
    leave: Floats

    @property
    def n_nodes(self) -> int:
        return len(self.enter)

    @property
    def n_layers(self) -> int:
        return int(self.stage.shape[1]) - 1


@dataclass(frozen=True, slots=True)
class Solution:
    """Stages in order, as (node, first layer, end layer), and the milliseconds of all of it."""

    ms: float
    stages: tuple[tuple[int, int, int], ...]

    @property
    def nodes(self) -> list[int]:
        return [node for node, _, _ in self.stages]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best that was found for each number of stages, and below what no placement of any number can be."""

    by_count: dict[int, Solution]
    bound_ms: float

    @property
    def best(self) -> Solution | None:
        return min(self.by_count.values(), key=lambda solution: solution.ms, default=None)

    @property
    def proven(self) -> bool:
        """Whether no placement is better than the best one."""
        best = self.best
        return best is None or best.ms <= self.bound_ms * (1 + 1e-9)


def add_layers(reached: Floats, stage: Floats) -> Floats:
    """Times after one more stage, by layers b: the least over a of reached[..., a] + stage[..., a, b]."""
    times: Floats = np.min(reached[..., :, None] + stage, axis=-2)
    return times


def cut_best(problem: PlacementProblem, nodes: Sequence[int]) -> Solution | None:
    """The best cuts for these nodes in this order; None if they cannot hold the model."""
    reached = problem.enter[nodes[0]] + problem.stage[nodes[0], 0]
    steps = [reached]
    for before, node in pairwise(nodes):
        reached = add_layers(reached + problem.hop[before, node], problem.stage[node])
        steps.append(reached)
    total = float(reached[-1] + problem.leave[nodes[-1]])
    if not np.isfinite(total):
        return None
    stages: list[tuple[int, int, int]] = []
    end = problem.n_layers
    for place in range(len(nodes) - 1, 0, -1):
        before, node = nodes[place - 1], nodes[place]
        first = int(np.argmin(steps[place - 1] + problem.hop[before, node] + problem.stage[node, :, end]))
        stages.append((node, first, end))
        end = first
    stages.append((nodes[0], 0, end))
    return Solution(total, tuple(reversed(stages)))


def cuts_by_pace(problem: PlacementProblem, nodes: Sequence[int]) -> Iterator[Solution]:
    """The best cuts for these nodes in this order; then the best of those whose slowest stage is notably
    faster, and so on until there are none."""
    solution = cut_best(problem, nodes)
    while solution is not None:
        yield solution
        bound = max(problem.stage[stage] for stage in solution.stages) * (1 - _STEP)
        faster = np.where(problem.stage < bound, problem.stage, np.inf)
        solution = cut_best(replace(problem, stage=faster), nodes)
