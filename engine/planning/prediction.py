"""How long a token takes with a given placement, predicted from profiles.

A plain step runs through all stages and comes back: the sum of the stages' compute, half a round trip for
every hop, and what processes spend on handing a message on. With drafts of the model's own head, n drafts
commit 1 + a1 + a1 a2 + .. tokens in the time of a window of n + 1 rows and of the drafts
(`engine.speculation.goodput`). With two or more stages the drafts may instead come behind the reply, in
windows of their own (`engine.speculation.drafts_behind`). The best of all that is what the engine's policy
settles on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from engine.planning.costs import StageCosts
from engine.planning.profiles import Cluster, Demand, ModelProfile, NodeProfile
from engine.speculation import drafts_behind
from engine.speculation.acceptance import DEEPER, DRAFT_PRIOR
from engine.speculation.costs import LoopTimes

MESSAGE_BYTES = 64  # of a window without its activations
DRAFT_MAX = 4
DEPTH_MAX = 4


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """Layers `first` to `end` (not included) on a node."""

    node: NodeProfile
    first: int
    end: int


Placement = tuple[PlacedStage, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times in milliseconds. `tpot_ms` is the time per token to expect: with drafts where they pay
    (`drafts` of them each time, `behind` the reply or in it), else `plain_ms`."""

    tpot_ms: float
    plain_ms: float
    drafts: int
    behind: bool
    ttft_ms: float
    stage_ms: tuple[float, ...]  # compute of each stage in a plain step
    network_ms: float  # of a plain step: everything but compute

    @property
    def tokens_per_second(self) -> float:
        return 1000 / self.tpot_ms


@dataclass(frozen=True, slots=True)
class Drafting:
    """Whether the model's own head may draft, and how often its first draft is right. At most `depth` windows
    are under way; with 1, drafts come in replies."""

    most: int = DRAFT_MAX
    acceptance: float = DRAFT_PRIOR
    depth: int = DEPTH_MAX

    def survivals(self, drafts: int) -> list[float]:
        """Chance that the first 1, 2, .. of so many drafts are all right."""
        rates = (self.acceptance * DEEPER**depth for depth in range(drafts))
        return list(accumulate(rates, mul))

    def tokens(self, drafts: int) -> float:
        """Tokens that so many drafts, in one window or behind it, commit on average."""
        return 1.0 + sum(self.survivals(drafts))


def predict(
    cluster: Cluster, model: ModelProfile, placement: Placement, demand: Demand, drafting: Drafting
) -> Prediction:
    """The times of a placement; `demand` says where in which answer."""
    costs = StageCosts(model, demand)
    head = placement[-1].node
    most = drafting.most if model.native_mtp and head.compute.draft_us else 0
    loop = [window_ms(cluster, costs, placement, rows) for rows in range(1, most + 2)]
    ways = [
        ((loop[drafts] + draft_ms(head, drafts)) / drafting.tokens(drafts), drafts, False)
        for drafts in range(most + 1)
    ]
    if len(placement) > 1 and drafting.depth > 1:
        times = _loop_times(costs, placement, loop)
        for drafts in range(1, most + 1):
            ways.append((_behind_ms(head, times, drafting, drafts) / drafting.tokens(drafts), drafts, True))
    tpot_ms, drafts, behind = min(ways)
    return Prediction(
        tpot_ms=tpot_ms,
        plain_ms=loop[0],
        drafts=drafts,
        behind=behind,
        ttft_ms=first_token_ms(cluster, costs, placement),
        stage_ms=tuple(costs.compute_ms(stage.node, stage.first, stage.end, 1) for stage in placement),
        network_ms=network_ms(cluster, model, placement, 1),
    )


@dataclass(frozen=True, slots=True)
class _HeadCosts:
    """What `engine.speculation.drafts_behind` asks for, where nothing was decoded yet and every stage has a
    device of its own."""

    head: NodeProfile

    @property
    def beside_drafts_ms(self) -> Mapping[int, float]:
        return {}

    def draft_ms(self, drafts: int) -> float:
        return draft_ms(self.head, drafts)

    def lag_ms(self, rows: int) -> float | None:
        return None

    def crowding(self, rows: int) -> float:
        return 1.0


def _loop_times(costs: StageCosts, placement: Placement, loop: Sequence[float]) -> LoopTimes:
    """Compute of each stage beside the times of whole loops, which begin with one row."""
    stages = [
        [0.0, *(costs.compute_ms(stage.node, stage.first, stage.end, rows + 1) for rows in range(len(loop)))]
        for stage in placement
    ]
    return LoopTimes(
        loop=[0.0, *loop],
        slowest=[max(column) for column in zip(*stages, strict=True)],
        first=stages[0],
        last=stages[-1],
        step=sum(stage[1] for stage in stages),
    )


def _behind_ms(head: NodeProfile, times: LoopTimes, drafting: Drafting, drafts: int) -> float:
    """From a reply whose token is not known to continue a draft, to the next one, with drafts behind it."""
    head_costs = _HeadCosts(head)
    following_ms, _ = drafts_behind.best_way(head_costs, times, drafting.survivals(drafts), drafting.depth)
    return drafts_behind.window_ms(head_costs, times, drafts) + following_ms


def window_ms(cluster: Cluster, costs: StageCosts, placement: Placement, rows: int) -> float:
    """A window of `rows` rows, from the coordinator through all stages and back."""
    compute = (costs.compute_ms(stage.node, stage.first, stage.end, rows) for stage in placement)
    return sum(compute) + network_ms(cluster, costs.model, placement, rows)


def draft_ms(head: NodeProfile, drafts: int) -> float:
    """So many drafts of the model's own head, on the node of the last stage."""
    return drafts * head.compute.draft_us / 1000


def network_ms(cluster: Cluster, model: ModelProfile, placement: Placement, rows: int) -> float:
    """Milliseconds of a loop besides compute: to the first stage, between the stages, and from the last one
    straight back; and in the processes."""
    nodes = [stage.node for stage in placement]
    return (
        loop_ms(cluster)
        + enter_ms(cluster, nodes[0])
        + sum(hop_ms(cluster, model, a, b, rows) for a, b in pairwise(nodes))
        + leave_ms(cluster, nodes[-1])
    )


def loop_ms(cluster: Cluster) -> float:
    """What the coordinator spends on a window."""
    return cluster.own.handling_ms


def enter_ms(cluster: Cluster, first: NodeProfile) -> float:
    """From the coordinator to the first stage: tokens only, and nothing if it runs in the same process."""
    if first.own:
        return 0.0
    way = cluster.link(cluster.own.name, first.name)
    return way.one_way_ms(MESSAGE_BYTES) + first.handling_ms


def hop_ms(
    cluster: Cluster, model: ModelProfile, sender: NodeProfile, receiver: NodeProfile, rows: int
) -> float:
    """From one stage to the next, with the activations of a window."""
    way = cluster.link(sender.name, receiver.name)
    return way.one_way_ms(MESSAGE_BYTES + rows * model.row_bytes) + receiver.handling_ms


def leave_ms(cluster: Cluster, last: NodeProfile) -> float:
    """From the last stage straight back to the coordinator."""
    return 0.0 if last.own else cluster.link(last.name, cluster.own.name).one_way_ms(MESSAGE_BYTES)


def first_token_ms(cluster: Cluster, costs: StageCosts, placement: Placement) -> float:
    """Time to the first token: chunks of the prompt follow each other through the stages, as many under way
    as the coordinator allows, and the last of them gives the token."""
    chunks = _chunks(costs.demand)
    credit = len(placement) + 1
    free = [0.0] * len(placement)  # when each stage is done with what it has
    back: list[float] = []  # when the coordinator knows of a chunk that it is done
    for number, (start, rows) in enumerate(chunks):
        now = back[number - credit] if number >= credit else 0.0
        now += loop_ms(cluster) + enter_ms(cluster, placement[0].node)
        for index, stage in enumerate(placement):
            if index:
                now += hop_ms(cluster, costs.model, placement[index - 1].node, stage.node, rows)
            now = max(now, free[index]) + costs.chunk_ms(stage.node, stage.first, stage.end, rows, start)
            free[index] = now
        back.append(now + leave_ms(cluster, placement[-1].node))
    return back[-1] + costs.head_ms(placement[-1].node, 1)


def _chunks(demand: Demand) -> Sequence[tuple[int, int]]:
    """First position and rows of each chunk of the prompt: equal ones, as large as allowed."""
    count = -(-demand.prompt // demand.batch_rows)
    edges = [demand.prompt * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in pairwise(edges)]
