"""Good placements for many nodes, with a bound that says how good.

- The *bound*: if a node could be used twice, the best path would be a plain dynamic program over (last node,
  layers). No placement is faster than that.
- Placements come from the same program with memory, stage by stage: each state keeps its best path, and only
  nodes that are not on it may follow. For one and two stages that gives the best placement there is. One more
  comes from filling the nodes with the most room one after the other.
- Then single nodes are replaced, added, moved and left out, with the best cuts each time, until nothing
  helps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.planning.problem import (
    Floats,
    PlacementProblem,
    SearchResult,
    Solution,
    add_layers,
    cut_best,
)

_SHOWN = 3  # numbers of stages that are always looked at
_PATIENCE = 4  # further numbers of stages without a better placement, after which no more are tried
_IMPROVED = 2  # numbers of stages, the most promising ones, whose placement is improved
_STEPS = 12  # most improvements of one placement
_LEAST_GAIN = 1e-9


def solve_well(problem: PlacementProblem) -> SearchResult:
    """Good placements by number of stages, and a lower bound for all of them."""
    found = _without_repetition(problem)
    filled = _filled(problem)
    if filled is not None:
        found.setdefault(len(filled.stages), filled)
    promising = sorted(found, key=lambda count: found[count].ms)[:_IMPROVED]
    for count in promising:
        for solution in _improved(problem, found[count]):
            known = found.get(len(solution.stages))
            if known is None or solution.ms < known.ms:
                found[len(solution.stages)] = solution
    return SearchResult(found, lower_bound(problem))


def lower_bound(problem: PlacementProblem) -> float:
    """The time of the best path that may use nodes again, however many stages it has."""
    reached = problem.enter[:, None] + problem.stage[:, 0]  # (last node, layers)
    hop = _no_loops(problem)
    for layers in range(1, problem.n_layers):  # every path has all its ways to here by now
        arriving = np.min(reached[:, layers, None] + hop, axis=0)
        reached = np.minimum(reached, arriving[:, None] + problem.stage[:, layers])
    return float(np.min(reached[:, -1] + problem.leave))


def _filled(problem: PlacementProblem) -> Solution | None:
    """The placement in which the nodes that can take the most layers take them."""
    layers = np.arange(problem.n_layers + 1)
    spans = np.where(np.isfinite(problem.stage), layers[None, None, :] - layers[None, :, None], 0)
    room = spans.max(axis=(1, 2))
    first_only: NDArray[np.bool_] = np.isinf(np.min(_no_loops(problem), axis=0))
    order = sorted(range(problem.n_nodes), key=lambda node: (not first_only[node], -room[node]))
    for count in range(1, min(problem.n_nodes, problem.n_layers) + 1):
        solution = cut_best(problem, order[:count])
        if solution is not None:
            return solution
    return None


def _no_loops(problem: PlacementProblem) -> Floats:
    hop = problem.hop.copy()
    np.fill_diagonal(hop, np.inf)
    return hop


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """All states after some stages: time, nodes used (a truth value for each), and the state before."""

    ms: Floats  # (last node, layers)
    used: NDArray[np.bool_]  # (last node, layers, nodes)
    before: NDArray[np.intp]  # (last node, layers, 2): node and layers of the state before


def _without_repetition(problem: PlacementProblem) -> dict[int, Solution]:
    """One placement for each number of stages that could be the best, by the program with memory."""
    n_nodes, width = problem.n_nodes, problem.n_layers + 1
    hop = _no_loops(problem)
    first = _Layer(
        ms=problem.enter[:, None] + problem.stage[:, 0],
        used=np.repeat(np.eye(n_nodes, dtype=bool)[:, None, :], width, axis=1),
        before=np.zeros((n_nodes, width, 2), dtype=np.intp),
    )
    layers = [first]
    found: dict[int, Solution] = {}
    for count in range(1, min(n_nodes, problem.n_layers) + 1):
        if count > 1:
            layers.append(_next_layer(problem, hop, layers[-1]))
        solution = _best_of(problem, layers)
        if solution is not None:
            found[count] = solution
        best = min(found, key=lambda known: found[known].ms, default=count)
        if count >= max(_SHOWN, best + _PATIENCE):
            break
    return found


def _next_layer(problem: PlacementProblem, hop: Floats, last: _Layer) -> _Layer:
    n_nodes, width = problem.n_nodes, problem.n_layers + 1
    arriving = last.ms[:, None, :] + hop[:, :, None]  # (before, node, layers)
    arriving[np.swapaxes(last.used, 1, 2)] = np.inf
    source = np.argmin(arriving, axis=0)  # (node, layers)
    reached = np.take_along_axis(arriving, source[None], axis=0)[0]
    ways = reached[:, :, None] + problem.stage  # (node, layers before, layers)
    begin = np.argmin(ways, axis=1)
    nodes = np.arange(n_nodes)[:, None]
    origin = source[nodes, begin]
    used = last.used[origin, begin]
    used[nodes, np.arange(width)[None], nodes] = True
    ms = np.take_along_axis(ways, begin[:, None], axis=1)[:, 0]
    return _Layer(ms, used, np.stack((origin, begin), axis=-1))


def _best_of(problem: PlacementProblem, layers: list[_Layer]) -> Solution | None:
    total = layers[-1].ms[:, -1] + problem.leave
    node, end = int(np.argmin(total)), problem.n_layers
    if not np.isfinite(total[node]):
        return None
    order = [node]
    for layer in reversed(layers[1:]):
        node, end = layer.before[node, end]
        order.append(int(node))
    return cut_best(problem, order[::-1])


def _improved(problem: PlacementProblem, solution: Solution) -> list[Solution]:
    """What local changes lead to, step by step."""
    steps = []
    for _ in range(_STEPS):
        order = _best_change(problem, solution.nodes)
        better = cut_best(problem, order) if order is not None else None
        if better is None or better.ms >= solution.ms - _LEAST_GAIN:
            break
        solution = better
        steps.append(solution)
    return steps


def _best_change(problem: PlacementProblem, order: list[int]) -> list[int] | None:
    """The order of nodes after the best single change: a node replaced, added, moved, or left out."""
    ways = _Ways(problem, order)
    changes = [
        (ms, [*order[:place], *node, *order[end:]])
        for place in range(len(order) + 1)
        for end in (place, place + 1)
        if end <= len(order)
        for ms, node in ways.between(place, end)
    ]
    for place, node in enumerate(order):
        rest = order[:place] + order[place + 1 :]
        if rest:
            moved = _Ways(problem, rest)
            places = range(len(order))
            changes += [(moved.with_node(at, node), [*rest[:at], node, *rest[at:]]) for at in places]
    return min(changes, key=lambda change: change[0], default=(np.inf, None))[1]


class _Ways:
    """Times of a given order of nodes from both ends, so that a change in the middle is quick to judge."""

    def __init__(self, problem: PlacementProblem, order: list[int]) -> None:
        self._problem = problem
        self._order = order
        self._free = np.array(sorted(set(range(problem.n_nodes)) - set(order)), dtype=np.intp)
        width = problem.n_layers + 1
        nothing = np.full(width, np.inf)
        nothing[0] = 0.0
        # Before the stage at a place: the time in which layers are computed and on their way out ..
        self._heads = [nothing]
        for place, node in enumerate(order):
            self._heads.append(add_layers(self._heads[-1] + self._into(place, node), problem.stage[node]))
        # .. and the time that the stages from a place on take for the layers that are left.
        done = np.full(width, np.inf)
        done[-1] = 0.0
        self._tails = [done]
        for place in range(len(order) - 1, -1, -1):
            node = order[place]
            after = self._tails[-1] + self._out_of(node, place + 1)
            self._tails.append(np.min(problem.stage[node] + after[None, :], axis=1))
        self._tails.reverse()

    def _into(self, place: int, node: int) -> float:
        if place == 0:
            return float(self._problem.enter[node])
        return float(self._problem.hop[self._order[place - 1], node])

    def _out_of(self, node: int, place: int) -> float:
        if place == len(self._order):
            return float(self._problem.leave[node])
        return float(self._problem.hop[node, self._order[place]])

    def with_node(self, place: int, node: int) -> float:
        """The time with one more stage, on `node`, at a place."""
        head = add_layers(self._heads[place] + self._into(place, node), self._problem.stage[node])
        return float(np.min(head + self._out_of(node, place) + self._tails[place]))

    def between(self, place: int, end: int) -> list[tuple[float, list[int]]]:
        """The best unused node instead of the stages from `place` to `end`, and no node at all."""
        problem, changes = self._problem, []
        heads, tails = np.isfinite(self._heads[place]), np.isfinite(self._tails[end])
        if len(self._free) and heads.any() and tails.any():
            into = problem.enter if place == 0 else problem.hop[self._order[place - 1]]
            out = problem.leave if end == len(self._order) else problem.hop[:, self._order[end]]
            arriving = self._heads[place][heads] + into[self._free, None]
            leaving = self._tails[end][tails] + out[self._free, None]
            reached = add_layers(arriving, problem.stage[np.ix_(self._free, heads, tails)])
            times = np.min(reached + leaving, axis=1)
            best = int(np.argmin(times))
            changes.append((float(times[best]), [int(self._free[best])]))
        if end > place and len(self._order) > 1:
            changes.append((self._joined(place, end), []))
        return changes

    def _joined(self, place: int, end: int) -> float:
        """The time without the stages from `place` to `end`."""
        if end == len(self._order):
            gap = self._problem.leave[self._order[place - 1]]
        elif place == 0:
            gap = self._problem.enter[self._order[end]]
        else:
            gap = self._problem.hop[self._order[place - 1], self._order[end]]
        return float(np.min(self._heads[place] + gap + self._tails[end]))
