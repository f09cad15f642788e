"""A plan in words, as a table and as JSON."""

from __future__ import annotations

from typing import Any

from engine.planning.costs import StageCosts
from engine.planning.planner import EXACT_NODES, SIGNIFICANT, Candidate, Plan, count_of, gib
from engine.planning.prediction import Placement


def explanation(plan: Plan) -> list[str]:
    """Why this placement, one sentence each."""
    chosen, prediction = plan.chosen, plan.chosen.prediction
    lines = [f"{in_words(chosen.placement)}: {_speed(chosen)}."]
    compute = sum(prediction.stage_ms)
    lines.append(
        f"A token takes {prediction.plain_ms:.1f} ms without drafts: {compute:.1f} ms of compute and "
        f"{prediction.network_ms:.1f} ms on the way and in the processes."
    )
    if prediction.drafts:
        right = f"if the first one is right {plan.drafting.acceptance:.0%} of the time"
        drafts = count_of(prediction.drafts, "draft")
        lines.append(f"With {drafts} of the model's own head it is {prediction.tpot_ms:.1f} ms, {right}.")
    lines += _against_splits(plan)
    lines += _against_others(plan)
    if plan.unused:
        names = ", ".join(node.name for node in plan.unused)
        lines.append(f"Left out, because more stages do not make it faster: {names}.")
    if plan.gap:
        lines.append(
            f"With more than {EXACT_NODES} nodes not everything is tried: the best placement could be up to "
            f"{plan.gap:.0%} faster than the fastest one found."
        )
    return lines


def _against_splits(plan: Plan) -> list[str]:
    chosen, split = plan.chosen, _fastest_split(plan)
    if not chosen.alone or split is None or split.prediction.tpot_ms <= chosen.prediction.tpot_ms:
        return []
    stages, speed = count_of(split.stages, "stage"), split.prediction.tokens_per_second
    return [f"This one machine alone is faster than any split: {stages} would make {speed:.1f} tok/s."]


def _against_others(plan: Plan) -> list[str]:
    chosen, fastest = plan.chosen, plan.fastest
    if chosen is not fastest:
        gain = 1 - fastest.prediction.tpot_ms / chosen.prediction.tpot_ms
        met = plan.target_ms and chosen.prediction.tpot_ms <= plan.target_ms
        reason = "which the target does not ask for" if met else f"not the {SIGNIFICANT:.0%} that would count"
        if fastest.stages > chosen.stages and (met or gain < SIGNIFICANT):
            return [f"{count_of(fastest.stages, 'stage')} would be {gain:.1%} faster, {reason}."]
        return []
    if plan.one_machine is None:
        return [f"No machine has room for all of {plan.model.name}."]
    return []


def warnings(plan: Plan) -> list[str]:
    """What whoever runs this should know: a split that one machine outruns, a target that is not met."""
    found = []
    alone, chosen = plan.one_machine, plan.chosen
    if alone is not None and not chosen.alone and alone.prediction.tpot_ms < chosen.prediction.tpot_ms:
        where = alone.placement[0].node.name
        found.append(
            f"one machine alone is faster: {where} makes {alone.prediction.tokens_per_second:.1f} tok/s, "
            f"{count_of(chosen.stages, 'stage')} make {chosen.prediction.tokens_per_second:.1f}"
        )
    if plan.target_ms and chosen.prediction.tpot_ms > plan.target_ms:
        found.append(
            f"no placement takes {plan.target_ms:g} ms per token or less; "
            f"the fastest takes {plan.fastest.prediction.tpot_ms:.1f} ms"
        )
    return found


def _fastest_split(plan: Plan) -> Candidate | None:
    splits = [candidate for candidate in plan.candidates if not candidate.alone]
    return min(splits, key=lambda candidate: candidate.prediction.tpot_ms, default=None)


def in_words(placement: Placement) -> str:
    """`front 0:12, server 12:30`."""
    return ", ".join(f"{stage.node.name} {stage.first}:{stage.end}" for stage in placement)


def _speed(candidate: Candidate) -> str:
    prediction = candidate.prediction
    return f"{prediction.tokens_per_second:.1f} tokens a second, the first after {prediction.ttft_ms:.0f} ms"


def table(plan: Plan) -> list[str]:
    """One line for each candidate, the chosen one marked."""
    heads = ("ms/token", "plain", "compute", "network", "first")
    lines = ["  stages  " + "  ".join(f"{head:>8}" for head in heads) + "  placement"]
    for candidate in plan.candidates:
        prediction = candidate.prediction
        mark = "*" if candidate is plan.chosen else " "
        times = (prediction.tpot_ms, prediction.plain_ms, sum(prediction.stage_ms), prediction.network_ms)
        columns = "  ".join(f"{ms:>8.2f}" for ms in times)
        placed = in_words(candidate.placement)
        lines.append(f"{mark} {candidate.stages:>6}  {columns}  {prediction.ttft_ms:>8.0f}  {placed}")
    return lines


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything about a plan, for scripts."""
    costs = StageCosts(plan.model, plan.demand)
    return {
        "model": {
            "name": plan.model.name,
            "fingerprint": plan.model.fingerprint,
            "layers": plan.model.n_layers,
        },
        "chosen": _candidate_json(plan.chosen, costs),
        "candidates": [_candidate_json(candidate, costs) for candidate in plan.candidates],
        "one_machine": None if plan.one_machine is None else _candidate_json(plan.one_machine, costs),
        "unused": [node.name for node in plan.unused],
        "acceptance": plan.drafting.acceptance if plan.model.native_mtp else None,
        "gap": plan.gap,
        "target_tpot_ms": plan.target_ms or None,
        "explanation": explanation(plan),
        "warnings": warnings(plan),
    }


def _candidate_json(candidate: Candidate, costs: StageCosts) -> dict[str, Any]:
    prediction = candidate.prediction
    return {
        "tpot_ms": round(prediction.tpot_ms, 3),
        "tokens_per_second": round(prediction.tokens_per_second, 2),
        "plain_tpot_ms": round(prediction.plain_ms, 3),
        "drafts": prediction.drafts,
        "ttft_ms": round(prediction.ttft_ms, 1),
        "network_ms": round(prediction.network_ms, 3),
        "stages": [
            {
                "node": stage.node.name,
                "url": stage.node.url,
                "layers": [stage.first, stage.end],
                "compute_ms": round(ms, 3),
                "memory": gib(costs.bytes_of(stage.first, stage.end)),
            }
            for stage, ms in zip(candidate.placement, prediction.stage_ms, strict=True)
        ],
    }
