"""What is chosen, and what is said about it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SkippyError
from engine.planning.costs import StageCosts
from engine.planning.explain import explanation, plan_json, table, warnings
from engine.planning.planner import judge, plan_placement
from engine.planning.prediction import Drafting, PlacedStage, Placement, predict
from engine.planning.profiles import MIB, Cluster, LinkProfile, ModelProfile, NodeProfile
from tests.planning.machines import SMALL, cluster, model, node

PLAIN = Drafting(most=0)


def fits(placement: Placement, profile: ModelProfile) -> bool:
    bytes_of = StageCosts(profile, SMALL).bytes_of
    return all(bytes_of(stage.first, stage.end) <= stage.node.free_bytes for stage in placement)


def every_placement(machines: Cluster, profile: ModelProfile) -> list[Placement]:
    """All that can be: the coordinator's own machine comes first or not at all."""
    found = []
    for count in range(1, min(len(machines.nodes), profile.n_layers) + 1):
        for order in itertools.permutations(machines.nodes, count):
            if any(each.own for each in order[1:]):
                continue
            for cuts in itertools.combinations(profile.cuts, count - 1):
                spans = itertools.pairwise((0, *cuts, profile.n_layers))
                placement = tuple(PlacedStage(each, *span) for each, span in zip(order, spans, strict=True))
                if fits(placement, profile):
                    found.append(placement)
    return found


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_nodes=st.integers(1, 6),
    n_layers=st.integers(1, 4),
    mtp=st.booleans(),
    own_first=st.booleans(),  # as in a run over machines that wait, or as with --emulate
)
def test_no_placement_on_up_to_six_nodes_is_faster(
    seed: int, n_nodes: int, n_layers: int, mtp: bool, own_first: bool
) -> None:
    rng = np.random.default_rng(seed)
    room = rng.choice([2.0, 4.0, 12.0])
    names = [f"n{index}" for index in range(n_nodes)]
    nodes = [
        node(name, rng.uniform(0.5, 1.5) * room, rng.uniform(0.3, 3), own=name == "n0", draft_us=500.0)
        for name in names
    ]
    pairs = itertools.permutations(names, 2)
    links = [LinkProfile(a, b, rng.choice([0.0, 3.0, 40.0]), rng.choice([0.0, 10.0])) for a, b in pairs]
    machines = cluster(nodes, 0, links)
    profile = model(rng.uniform(0.5, 2, n_layers), native_mtp=mtp)
    drafting = Drafting(most=3, acceptance=0.7, depth=1)
    possible = [each for each in every_placement(machines, profile) if each[0].node.own or not own_first]
    if not possible:
        with pytest.raises(SkippyError, match="does not fit"):
            plan_placement(machines, profile, SMALL, drafting, own_first=own_first)
        return
    plan = plan_placement(machines, profile, SMALL, drafting, own_first=own_first)
    best = min(predict(machines, profile, each, SMALL, drafting).tpot_ms for each in possible)
    assert plan.fastest.prediction.tpot_ms == pytest.approx(best, rel=1e-3)
    assert plan.gap == 0
    assert plan.chosen.prediction.tpot_ms <= best * 1.0301
    assert plan.chosen.placement in possible


def test_sixty_four_nodes_are_placed_near_the_bound() -> None:
    rng = np.random.default_rng(1)
    nodes = [node(f"n{i}", rng.uniform(4, 20), rng.uniform(0.3, 3), own=i == 0) for i in range(64)]
    far = {(a.name, b.name): rng.uniform(1, 40) for a, b in itertools.permutations(nodes, 2)}
    machines = cluster(nodes, 0, [LinkProfile(*pair, rtt_ms) for pair, rtt_ms in far.items()])
    profile = model([1.0] * 64)
    plan = plan_placement(machines, profile, SMALL, PLAIN)
    assert fits(plan.chosen.placement, profile)
    assert 0 < plan.gap < 0.5
    assert any("not everything is tried" in line for line in explanation(plan))


def pair(rtt_ms: float, *, free_mib: float = 100.0) -> Cluster:
    return cluster([node("front", free_mib, own=True), node("server", free_mib)], rtt_ms)


def test_a_model_that_fits_one_machine_stays_there_and_it_is_said_what_a_split_would_make() -> None:
    plan = plan_placement(pair(20), model([1.0] * 10), SMALL, PLAIN)
    assert [stage.node.name for stage in plan.chosen.placement] == ["front"]
    assert [each.name for each in plan.unused] == ["server"]
    assert any("Left out" in line and "server" in line for line in explanation(plan))
    assert warnings(plan) == []
    speed = plan.candidates[1].prediction.tokens_per_second
    assert f"faster than any split: 2 stages would make {speed:.1f} tok/s." in " ".join(explanation(plan))
    assert "Left out" not in " ".join(table(plan))


def test_a_split_that_somebody_else_chose_is_warned_of() -> None:
    machines, profile = pair(20), model([1.0] * 10)
    front, server = machines.nodes
    placement = (PlacedStage(front, 0, 5), PlacedStage(server, 5, 10))
    plan = judge(machines, profile, placement, SMALL, PLAIN)
    assert plan.chosen.placement == placement
    assert "one machine alone is faster" in warnings(plan)[0]
    asked = plan_placement(machines, profile, SMALL, PLAIN, stages=2)
    assert asked.chosen.stages == 2
    (warning,) = warnings(asked)
    alone, split = asked.one_machine, asked.chosen
    assert alone is not None
    assert f"one machine alone is faster: front makes {alone.prediction.tokens_per_second:.1f}" in warning
    assert f"2 stages make {split.prediction.tokens_per_second:.1f}" in warning
    assert "faster than any split" not in " ".join(explanation(asked))


def test_a_faster_machine_elsewhere_does_it_alone_if_the_way_is_short_enough() -> None:
    def alone_on(rtt_ms: float, *, own_first: bool = False) -> str:
        machines = cluster([node("front", 100, 4, own=True), node("server", 100)], rtt_ms)
        plan = plan_placement(machines, model([1.0] * 10), SMALL, PLAIN, own_first=own_first)
        return plan.chosen.placement[0].node.name

    assert alone_on(2) == "server"
    assert alone_on(80) == "front"
    assert alone_on(2, own_first=True) == "front"


def test_a_model_too_large_for_one_machine_is_spread_over_as_few_as_it_needs() -> None:
    nodes = [node("front", 7, own=True), *(node(f"n{i}", 7) for i in range(4))]
    plan = plan_placement(cluster(nodes, 1), model([1.0] * 10), SMALL, PLAIN)
    assert plan.chosen.stages == 2
    assert warnings(plan) == []
    assert any("No machine has room" in line for line in explanation(plan))


def test_more_stages_have_to_bring_something() -> None:
    nodes = [node("front", 100, own=True), node("twin", 100, 0.99)]
    plan = plan_placement(cluster(nodes, 0), model([1.0] * 10), SMALL, PLAIN)
    assert plan.chosen.stages == 1


def test_the_fewest_stages_that_reach_a_target_are_taken() -> None:
    nodes = [node("front", 100, 2, own=True), node("server", 10)]
    machines, profile = cluster(nodes, 1), model([1.0] * 10)
    slow, fast = plan_placement(machines, profile, SMALL, PLAIN).candidates
    assert fast.prediction.tpot_ms < slow.prediction.tpot_ms * 0.97
    assert plan_placement(machines, profile, SMALL, PLAIN).chosen == fast
    enough = plan_placement(machines, profile, SMALL, PLAIN, target_ms=slow.prediction.tpot_ms + 1)
    assert enough.chosen == slow
    assert "the target does not ask for" in " ".join(explanation(enough))
    never = plan_placement(machines, profile, SMALL, PLAIN, target_ms=0.1)
    assert never.chosen == fast
    assert any("no placement takes 0.1 ms" in warning for warning in warnings(never))


def test_it_is_said_how_much_memory_is_missing() -> None:
    profile = model([1.0] * 10)
    nodes = [node("front", 2, own=True), node("server", 4)]
    with pytest.raises(SkippyError) as caught:
        plan_placement(cluster(nodes, 1), profile, SMALL, PLAIN)
    bytes_of = StageCosts(profile, SMALL).bytes_of
    begun = sum(max(n for n in range(10) if bytes_of(0, n) <= free * MIB) for free in (2, 4))
    assert caught.value.code == "memory"
    assert f"{bytes_of(begun, 10) / 2**30:.2f} GiB of memory are missing" in str(caught.value)
    with pytest.raises(SkippyError, match="cannot be placed in 3 stages"):
        plan_placement(pair(1), profile, SMALL, PLAIN, stages=3)


def test_a_machine_without_room_for_the_first_layer_is_named() -> None:
    machines = cluster([node("front", 0.5, own=True), node("server", 100)], 1)
    profile = model([1.0] * 10)
    assert plan_placement(machines, profile, SMALL, PLAIN).chosen.placement[0].node.name == "server"
    with pytest.raises(SkippyError, match=r"front has the first layers, 0\.00 GiB at least"):
        plan_placement(machines, profile, SMALL, PLAIN, own_first=True)


def test_drafts_are_counted_where_they_pay() -> None:
    nodes = [node("front", 6, own=True, draft_us=300), node("server", 9, draft_us=300)]
    profile = model([1.0] * 10, native_mtp=True)
    plan = plan_placement(cluster(nodes, 50), profile, SMALL, Drafting(most=4, acceptance=0.8))
    prediction = plan.chosen.prediction
    assert prediction.drafts > 0
    assert prediction.tpot_ms < prediction.plain_ms
    assert any("the model's own head" in line for line in explanation(plan))


def two_machines(draft_us: float, slowness: float = 1.0, rtt_ms: float = 0.0) -> Cluster:
    front = node("front", 100, own=True, draft_us=draft_us)
    return cluster([front, node("server", 100, slowness, draft_us=draft_us)], rtt_ms)


def test_with_drafts_behind_replies_stages_take_equally_long() -> None:
    """Alone, a token takes as long wherever two equal machines share the layers; windows in a row do not."""
    profile = model([1.0] * 30, native_mtp=True)
    split = plan_placement(two_machines(600), profile, SMALL, Drafting(), stages=2).chosen
    assert split.prediction.behind
    first, last = split.prediction.stage_ms
    assert first == pytest.approx(last, abs=1.1)  # a layer takes 1 ms


@pytest.mark.parametrize("rtt_ms", [0, 20])
@pytest.mark.parametrize(("slowness", "draft_us"), [(0.4, 500), (1.0, 3000), (2.5, 500), (1.0, 30_000)])
def test_no_cut_of_two_machines_is_faster_with_drafts_behind(
    slowness: float, draft_us: float, rtt_ms: float
) -> None:
    machines, profile = two_machines(draft_us, slowness, rtt_ms), model([0.5, 1.5] * 10, native_mtp=True)
    split = plan_placement(machines, profile, SMALL, Drafting(), stages=2).chosen
    splits = [each for each in every_placement(machines, profile) if len(each) == 2]
    best = min(predict(machines, profile, each, SMALL, Drafting()).tpot_ms for each in splits)
    assert split.prediction.tpot_ms == pytest.approx(best, rel=0.02)


def test_drafting_behind_the_reply_hides_behind_the_first_stage() -> None:
    profile = model([1.0] * 30, native_mtp=True)

    def tpot_ms(draft_us: float, *, depth: int, stages: int = 2) -> float:
        drafting = Drafting(most=1, depth=depth)
        plan = plan_placement(two_machines(draft_us, rtt_ms=20), profile, SMALL, drafting, stages=stages)
        return plan.chosen.prediction.tpot_ms

    assert tpot_ms(12_000, depth=4) == pytest.approx(tpot_ms(6000, depth=4))
    assert tpot_ms(12_000, depth=1) > tpot_ms(6000, depth=1)
    assert tpot_ms(6000, depth=4, stages=1) == tpot_ms(6000, depth=1, stages=1)  # nothing to hide behind


def test_a_node_that_cannot_be_reached_is_not_used() -> None:
    nodes: list[NodeProfile] = [node("front", 6, own=True), node("near", 9), node("lost", 100, 0.1)]
    links = [LinkProfile("front", "lost", 60_000)]
    plan = plan_placement(cluster(nodes, 5, links), model([1.0] * 10), SMALL, PLAIN)
    assert [stage.node.name for stage in plan.chosen.placement] == ["front", "near"]


def test_the_json_of_a_plan_holds_all_of_it() -> None:
    plan = plan_placement(pair(20), model([1.0] * 10), SMALL, PLAIN)
    data = plan_json(plan)
    assert data["chosen"]["stages"][0]["layers"] == [0, 10]
    assert data["one_machine"] == data["chosen"]
    assert [len(candidate["stages"]) for candidate in data["candidates"]] == [1, 2]
    assert data["unused"] == ["server"]
    assert data["warnings"] == []
