"""The best placement of all, for few nodes: dynamic programming over sets of nodes.

It is Held and Karp's program with ranges of layers. `reached[set, last][b]` is the least time in which the
nodes of a set, `last` the last of them, compute the first b layers. It follows from the sets with one node
less, so n nodes and L layers take 2^n * n * L^2 steps.
"""

from __future__ import annotations

import numpy as np

from engine.planning.problem import (
    Floats,
    PlacementProblem,
    SearchResult,
    Solution,
    add_layers,
    cut_best,
)


def solve_exactly(problem: PlacementProblem) -> SearchResult:
    """The best placement for every number of stages for which there is one."""
    reached: dict[tuple[int, int], Floats] = {}
    best: dict[int, tuple[float, int, int]] = {}  # by number of stages: time, set, last node
    for nodes in range(1, 1 << problem.n_nodes):
        for last in range(problem.n_nodes):
            if not nodes & 1 << last:
                continue
            way = _extend(problem, reached, nodes, last)
            if way is None:
                continue
            reached[nodes, last] = way
            total = float(way[-1] + problem.leave[last])
            count = nodes.bit_count()
            if np.isfinite(total) and total < best.get(count, (np.inf,))[0]:
                best[count] = total, nodes, last
    solutions = {count: _path(problem, reached, nodes, last) for count, (_, nodes, last) in best.items()}
    bound = min((solution.ms for solution in solutions.values()), default=np.inf)
    return SearchResult(solutions, float(bound))


def _extend(
    problem: PlacementProblem, reached: dict[tuple[int, int], Floats], nodes: int, last: int
) -> Floats | None:
    """`reached[nodes, last]`; None if these nodes cannot be used like that."""
    others = nodes & ~(1 << last)
    if not others:
        way = problem.enter[last] + problem.stage[last, 0]
    else:
        before = _before(problem, reached, others, last)
        if not before:
            return None
        way = add_layers(np.min([ms for _, ms in before], axis=0), problem.stage[last])
    return way if np.isfinite(way).any() else None


def _before(
    problem: PlacementProblem, reached: dict[tuple[int, int], Floats], others: int, last: int
) -> list[tuple[int, Floats]]:
    """For each node that may come before `last`, the time in which layers arrive from it."""
    return [
        (node, reached[others, node] + problem.hop[node, last])
        for node in range(problem.n_nodes)
        if (others, node) in reached and np.isfinite(problem.hop[node, last])
    ]


def _path(
    problem: PlacementProblem, reached: dict[tuple[int, int], Floats], nodes: int, last: int
) -> Solution:
    order, end = [last], problem.n_layers
    while nodes := nodes & ~(1 << last):
        before = _before(problem, reached, nodes, last)
        costs = np.array([ms + problem.stage[last, :, end] for _, ms in before])
        row, end = divmod(int(np.argmin(costs)), costs.shape[1])
        last = before[row][0]
        order.append(last)
    solution = cut_best(problem, order[::-1])
    assert solution is not None
    return solution
