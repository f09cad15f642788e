"""The search for placements, against all there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.planning.exact import solve_exactly
from engine.planning.heuristic import solve_well
from engine.planning.problem import PlacementProblem, Solution, cuts_by_pace


def every_placement(problem: PlacementProblem) -> list[Solution]:
    """All orders of all sets of nodes with all cuts, and their times."""
    found = []
    for count in range(1, min(problem.n_nodes, problem.n_layers) + 1):
        for order in itertools.permutations(range(problem.n_nodes), count):
            for cuts in itertools.combinations(range(1, problem.n_layers), count - 1):
                edges = (0, *cuts, problem.n_layers)
                stages = tuple((node, edges[i], edges[i + 1]) for i, node in enumerate(order))
                ms = problem.enter[order[0]] + problem.leave[order[-1]]
                ms += sum(problem.hop[pair] for pair in itertools.pairwise(order))
                ms += sum(problem.stage[stage] for stage in stages)
                if np.isfinite(ms):
                    found.append(Solution(float(ms), stages))
    return found


def time_of(problem: PlacementProblem, solution: Solution) -> float:
    """What a solution takes, added up anew."""
    nodes = solution.nodes
    ms = problem.enter[nodes[0]] + problem.leave[nodes[-1]]
    ms += sum(problem.hop[pair] for pair in itertools.pairwise(nodes))
    return float(ms + sum(problem.stage[stage] for stage in solution.stages))


@st.composite
def problems(draw: st.DrawFn, most_nodes: int, most_layers: int) -> PlacementProblem:
    """Nodes of random speed and memory, asymmetric ways, layers that differ, cuts not everywhere."""
    n_nodes = draw(st.integers(1, most_nodes))
    n_layers = draw(st.integers(1, most_layers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    fixed = draw(st.sampled_from([0.0, 0.3, 5.0]))
    far = draw(st.sampled_from([0.0, 1.0, 30.0]))
    room = draw(st.sampled_from([0.3, 0.7, 1.5]))  # of a node, as a share of the model
    layers = rng.uniform(0.5, 2.0, n_layers)
    sums = np.concatenate(([0.0], np.cumsum(layers)))
    spans = sums[None, :] - sums[:, None]
    head = np.zeros((n_layers + 1, n_layers + 1))
    head[:, -1] = rng.uniform(0, 5)
    speed = rng.choice([1.0, 1.0, 2.5, 0.4], n_nodes)
    stage = (spans + head)[None] * speed[:, None, None] + fixed
    memory = room * rng.uniform(0.2, 1.8, n_nodes) * sums[-1]
    stage[(spans + head / 2)[None] > memory[:, None, None]] = np.inf
    stage[:, spans <= 0] = np.inf
    for cut in range(1, n_layers):
        if rng.random() < 0.15:
            stage[:, cut, :] = stage[:, :, cut] = np.inf
    hop = rng.uniform(0, far, (n_nodes, n_nodes)) if far else np.zeros((n_nodes, n_nodes))
    enter, leave = rng.uniform(0, far, n_nodes), rng.uniform(0, far, n_nodes)
    if draw(st.booleans()):  # the coordinator's own machine can be the first stage only
        hop[:, 0] = np.inf
        enter[0] = leave[0] = 0.0
    return PlacementProblem(stage, hop, enter, leave)


@settings(max_examples=40, deadline=None)
@given(problems(most_nodes=6, most_layers=5))
def test_the_best_of_all_is_found_for_every_number_of_stages(
    problem: PlacementProblem,
) -> None:
    best: dict[int, float] = {}
    for solution in every_placement(problem):
        count = len(solution.stages)
        best[count] = min(best.get(count, np.inf), solution.ms)
    result = solve_exactly(problem)
    assert {count: solution.ms for count, solution in result.by_count.items()} == pytest.approx(best)
    for count, solution in result.by_count.items():
        assert len(solution.stages) == count
        assert time_of(problem, solution) == pytest.approx(solution.ms)
    assert result.proven


@settings(max_examples=80, deadline=None)
@given(problems(most_nodes=6, most_layers=6))
def test_what_is_found_for_many_nodes_keeps_its_promises(problem: PlacementProblem) -> None:
    exact, good = solve_exactly(problem), solve_well(problem)
    for count, solution in good.by_count.items():
        assert len(set(solution.nodes)) == len(solution.stages) == count
        assert time_of(problem, solution) == pytest.approx(solution.ms)
    for count in (1, 2):  # exact, whatever the problem
        assert (count in good.by_count) == (count in exact.by_count)
        if count in exact.by_count:
            assert good.by_count[count].ms == pytest.approx(exact.by_count[count].ms)
    if exact.best is not None:
        assert good.bound_ms <= exact.best.ms * (1 + 1e-9)
        if good.best is not None:
            assert good.best.ms >= exact.best.ms * (1 - 1e-9)
            assert not good.proven or good.best.ms == pytest.approx(exact.best.ms)


def test_nodes_whose_stages_do_not_interfere_are_placed_as_well_as_can_be() -> None:
    """Many alike nodes far enough apart: as few stages as the memory allows, on the fastest nodes."""
    n_nodes, n_layers = 64, 80
    rng = np.random.default_rng(7)
    sums = np.arange(n_layers + 1, dtype=float)
    spans = sums[None, :] - sums[:, None]
    speed = rng.uniform(0.5, 2.0, n_nodes)
    stage = spans[None] * speed[:, None, None]
    stage[:, (spans <= 0) | (spans > 12)] = np.inf
    hop = np.full((n_nodes, n_nodes), 3.0)
    result = solve_well(PlacementProblem(stage, hop, np.full(n_nodes, 3.0), np.full(n_nodes, 3.0)))
    fastest = np.sort(speed)
    best = 12 * fastest[:6].sum() + 8 * fastest[6] + 8 * 3.0
    assert result.best is not None
    assert result.best.ms == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(problems(most_nodes=3, most_layers=8))
def test_cuts_get_faster_at_the_slowest_stage_and_no_more_expensive_than_that_takes(
    problem: PlacementProblem,
) -> None:
    nodes = range(problem.n_nodes)
    every = [each for each in every_placement(problem) if each.nodes == [*nodes]]
    bound = np.inf
    for solution in cuts_by_pace(problem, nodes):
        slowest = max(problem.stage[stage] for stage in solution.stages)
        assert slowest < bound
        allowed = [each.ms for each in every if all(problem.stage[stage] <= slowest for stage in each.stages)]
        assert solution.ms == pytest.approx(min(allowed))
        bound = slowest
    left = [each for each in every if max(problem.stage[stage] for stage in each.stages) < bound * 0.979]
    assert not left
