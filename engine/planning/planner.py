"""Which nodes serve which layers: the placement with the least predicted time per token.

Up to `EXACT_NODES` nodes it is the best placement there is; with more, `engine.planning.heuristic` says how
good it is. Of placements that are about as fast, the one with the fewest stages is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.errors import SkippyError
from engine.planning.costs import StageCosts
from engine.planning.exact import solve_exactly
from engine.planning.heuristic import lower_bound, solve_well
from engine.planning.prediction import (
    Drafting,
    PlacedStage,
    Placement,
    Prediction,
    draft_ms,
    enter_ms,
    hop_ms,
    leave_ms,
    loop_ms,
    predict,
)
from engine.planning.problem import PlacementProblem, Solution, cuts_by_pace
from engine.planning.profiles import Cluster, Demand, ModelProfile, NodeProfile

EXACT_NODES = 10
SIGNIFICANT = 0.03  # share of the time per token that more stages have to save
_ROUNDING = 1e-9  # of sums that are added up in another order


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best placement with so many stages."""

    placement: Placement
    prediction: Prediction

    @property
    def stages(self) -> int:
        return len(self.placement)

    @property
    def alone(self) -> bool:
        """Whether one machine does it all."""
        return len(self.placement) == 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What was chosen, and from what.

    `candidates` has the best placement for every number of stages that was tried, fewest first. `gap` is how
    much slower than the best of all the fastest candidate can be at most, drafts behind replies left aside;
    0.0 if it is the best.
    """

    model: ModelProfile
    cluster: Cluster
    demand: Demand
    drafting: Drafting
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    gap: float
    target_ms: float = 0.0

    @property
    def fastest(self) -> Candidate:
        return min(self.candidates, key=_tpot)

    @property
    def one_machine(self) -> Candidate | None:
        """The fastest machine that can do it all alone."""
        return next((candidate for candidate in self.candidates if candidate.alone), None)

    @property
    def unused(self) -> list[NodeProfile]:
        """The nodes that are left out."""
        used = {stage.node.name for stage in self.chosen.placement}
        return [node for node in self.cluster.nodes if node.name not in used]


def plan_placement(
    cluster: Cluster,
    model: ModelProfile,
    demand: Demand,
    drafting: Drafting,
    *,
    stages: int = 0,
    target_ms: float = 0.0,
    own_first: bool = False,
) -> Plan:
    """Choose a placement.

    With `stages`, one of exactly so many. With `target_ms`, the fewest stages that are as fast as that per
    token, if any are. With `own_first`, the coordinator's machine has layers, the first ones.
    Raises SkippyError `memory` if the model does not fit, saying how much is missing.
    """
    costs = StageCosts(model, demand)
    candidates, gap = _candidates(cluster, costs, drafting, own_first=own_first)
    allowed = [candidate for candidate in candidates if stages in (0, candidate.stages)]
    if not candidates:
        here = _no_room_here(cluster.own, costs) if own_first else None
        raise here or no_room(cluster, costs)
    if not allowed:
        raise SkippyError(
            f"{model.name} cannot be placed in {stages} stages on these nodes",
            hint=f"possible: {', '.join(str(candidate.stages) for candidate in candidates)}",
            code="memory",
        )
    chosen = _choose(allowed, target_ms)
    return Plan(model, cluster, demand, drafting, chosen, tuple(candidates), gap, target_ms)


def judge(
    cluster: Cluster,
    model: ModelProfile,
    placement: Placement,
    demand: Demand,
    drafting: Drafting,
) -> Plan:
    """A placement that somebody else has chosen, with the candidates that there would have been."""
    candidates, gap = _candidates(cluster, StageCosts(model, demand), drafting)
    chosen = Candidate(placement, predict(cluster, model, placement, demand, drafting))
    others = [candidate for candidate in candidates if candidate.placement != placement]
    merged = sorted([*others, chosen], key=lambda candidate: candidate.stages)
    return Plan(model, cluster, demand, drafting, chosen, tuple(merged), gap)


def _tpot(candidate: Candidate) -> float:
    return candidate.prediction.tpot_ms


def _choose(candidates: list[Candidate], target_ms: float) -> Candidate:
    """The fewest stages that reach the target, or that are not notably slower than the fastest."""
    bound = min(map(_tpot, candidates)) * (1 + SIGNIFICANT)
    if target_ms and any(_tpot(candidate) <= target_ms for candidate in candidates):
        bound = target_ms
    return next(candidate for candidate in candidates if _tpot(candidate) <= bound)


def _candidates(
    cluster: Cluster, costs: StageCosts, drafting: Drafting, *, own_first: bool = False
) -> tuple[list[Candidate], float]:
    """The best placement by number of stages, and the gap of the fastest.

    The time per token with n drafts in the reply is a sum over stages and hops like that of a plain step, so
    it is searched for every n in turn, and the best of them is the best of all. With many nodes only the n
    that suits the best plain placement is looked at. With drafts behind the reply it is no such sum: the
    slowest stage counts as well. So for the orders of nodes that were found, faster slowest stages are tried.
    """
    few = len(cluster.nodes) <= EXACT_NODES
    solve = solve_exactly if few else solve_well
    drafts = range(drafting.most + 1 if costs.model.native_mtp else 1)
    problems = {n: make_problem(cluster, costs, n, own_first=own_first) for n in drafts}
    best: dict[int, Candidate] = {}
    orders: dict[tuple[int, ...], None] = {}  # of nodes, without repetition

    def consider(solution: Solution) -> None:
        stages = ((cluster.nodes[node], first, end) for node, first, end in solution.stages)
        placement = tuple(PlacedStage(*stage) for stage in stages)
        candidate = Candidate(placement, predict(cluster, costs.model, placement, costs.demand, drafting))
        if candidate.stages not in best or _tpot(candidate) < _tpot(best[candidate.stages]):
            best[candidate.stages] = candidate

    def search(n: int) -> tuple[float, float]:
        result = solve(problems[n])
        for solution in result.by_count.values():
            orders[tuple(solution.nodes)] = None
            consider(solution)
        fastest = min((solution.ms for solution in result.by_count.values()), default=np.inf)
        return fastest / drafting.tokens(n), result.bound_ms / drafting.tokens(n)

    fastest, bound = search(0)
    if not best:
        return [], 0.0
    suits = min(best.values(), key=_tpot).prediction.drafts
    for n in drafts[1:]:
        if few or n == suits:
            searched, bound_n = search(n)
            fastest = min(fastest, searched)
        else:
            bound_n = lower_bound(problems[n]) / drafting.tokens(n)
        bound = min(bound, bound_n)
    if len(drafts) > 1 and drafting.depth > 1:
        for order in orders:
            for solution in cuts_by_pace(problems[0], order) if len(order) > 1 else ():
                consider(solution)
    gap = max(0.0, fastest / bound - 1)
    return [best[count] for count in sorted(best)], gap if gap > _ROUNDING else 0.0


def make_problem(
    cluster: Cluster, costs: StageCosts, drafts: int, *, own_first: bool = False
) -> PlacementProblem:
    """Milliseconds of a loop that verifies and makes so many drafts."""
    rows, nodes, model = drafts + 1, cluster.nodes, costs.model
    stage = np.stack([costs.table(node, rows) for node in nodes])
    for index, node in enumerate(nodes):
        price = draft_ms(node, drafts)
        stage[index, :, -1] += price if price or not drafts else np.inf
    hop = np.array([[hop_ms(cluster, model, a, b, rows) for b in nodes] for a in nodes])
    for index, node in enumerate(nodes):
        if node.own:  # the engine computes the first layers, or none
            hop[:, index] = np.inf
    enter = np.array([loop_ms(cluster) + enter_ms(cluster, node) for node in nodes])
    if own_first:
        enter[[not node.own for node in nodes]] = np.inf
    leave = np.array([leave_ms(cluster, node) for node in nodes])
    return PlacementProblem(stage, hop, enter, leave)


def _no_room_here(own: NodeProfile, costs: StageCosts) -> SkippyError | None:
    """The error for a machine that is to have the first layers and cannot take the least of them."""
    model = costs.model
    end = min([*model.cuts, model.n_layers])
    needed = costs.bytes_of(0, end)
    if needed <= own.free_bytes:
        return None
    return SkippyError(
        f"{model.name} does not fit: {own.name} has the first layers, {gib(needed)} at least, "
        f"and {gib(own.free_bytes)} to give",
        hint="free memory here, or give a smaller --ctx or fewer --sequences",
        code="memory",
    )


def no_room(cluster: Cluster, costs: StageCosts) -> SkippyError:
    """The error for a model that does not fit, which names how much memory is missing.

    The largest nodes, the coordinator's first, are filled one after the other; what is left is missing.
    """
    model, demand = costs.model, costs.demand
    nodes = sorted(cluster.nodes, key=lambda node: (not node.own, -node.free_bytes))
    edges = [*model.cuts, model.n_layers]
    begun = 0
    for node in nodes:
        fits = [end for end in edges if end > begun and costs.bytes_of(begun, end) <= node.free_bytes]
        begun = max(fits, default=begun)
    free = sum(node.free_bytes for node in nodes)
    needed, missing = costs.bytes_of(0, model.n_layers), costs.bytes_of(begun, model.n_layers)
    caches = needed - sum(layer.weight_bytes for layer in model.layers) - model.head_bytes
    left = f"layers {begun}:{model.n_layers} and the head"
    return SkippyError(
        f"{model.name} does not fit: {gib(missing)} of memory are missing, for {left}. "
        f"It needs {gib(needed)}, {gib(caches)} of that for caches of {demand.context} tokens and buffers; "
        f"{count_of(len(nodes), 'machine')} have {gib(free)} to give",
        hint="add a node, or give a smaller --ctx or fewer --sequences",
        code="memory",
    )


def gib(n_bytes: float) -> str:
    """Bytes in words."""
    return f"{n_bytes / (1 << 30):.2f} GiB"


def count_of(number: int, thing: str) -> str:
    """`1 machine`, `2 machines`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
