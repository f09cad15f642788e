"""The arithmetic of predicted times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.planning.costs import StageCosts
from engine.planning.prediction import Drafting, PlacedStage, predict
from engine.planning.profiles import MIB, LinkProfile
from tests.planning.machines import SMALL, cluster, model, node

FRONT, MIDDLE, LAST = node("front", 100, own=True), node("middle", 100), node("last", 100)


def test_a_plain_step_is_compute_and_half_a_round_trip_for_every_hop() -> None:
    profile = model([1.0] * 6)
    links = [
        LinkProfile("front", "middle", 10),
        LinkProfile("middle", "last", 6),
        LinkProfile("last", "front", 30),
    ]
    machines = cluster([FRONT, MIDDLE, LAST], 0, links)
    spans = ((FRONT, 0, 2), (MIDDLE, 2, 4), (LAST, 4, 6))
    prediction = predict(machines, profile, tuple(PlacedStage(*span) for span in spans), SMALL, Drafting(0))
    kv = 256 * 2 * 96 / MIB * 10e-3  # two layers, 96 cached tokens, 10 us a MiB
    assert prediction.stage_ms == pytest.approx((2.1 + kv, 2.1 + kv, 4.1 + kv))
    assert prediction.network_ms == pytest.approx((10 + 6 + 30) / 2 + 3 * 0.5)
    assert prediction.tpot_ms == pytest.approx(sum(prediction.stage_ms) + prediction.network_ms, abs=2e-3)
    assert prediction.drafts == 0


def test_the_first_stage_costs_a_hop_where_it_is_elsewhere() -> None:
    profile, machines = model([1.0] * 4), cluster([FRONT, MIDDLE], 8)
    here = predict(machines, profile, (PlacedStage(FRONT, 0, 4),), SMALL, Drafting(0))
    there = predict(machines, profile, (PlacedStage(MIDDLE, 0, 4),), SMALL, Drafting(0))
    assert there.network_ms - here.network_ms == pytest.approx(8 + 0.5)


def test_bytes_take_time_on_a_line() -> None:
    profile = model([1.0] * 4)
    machines = cluster(
        [FRONT, LAST], 0, [LinkProfile("front", "last", 0, mbps=8), LinkProfile("last", "front", 0)]
    )
    stages = (PlacedStage(FRONT, 0, 2), PlacedStage(LAST, 2, 4))
    prediction = predict(machines, profile, stages, SMALL, Drafting(0))
    assert prediction.network_ms == pytest.approx((4096 + 64) / 1000 + 2 * 0.5)


def test_rows_of_a_window_never_cost_more_than_one_by_one() -> None:
    profile = model([1.0] * 4)
    dear = replace(FRONT, compute=replace(FRONT.compute, layer_us=(1000.0, 5000.0, 9000.0, 17000.0, 33000.0)))
    costs = StageCosts(profile, SMALL)
    for rows in (1, 2, 3, 8, 16):
        assert costs.compute_ms(dear, 0, 2, rows) <= rows * costs.compute_ms(dear, 0, 2, 1) + 1e-9
        table = costs.table(dear, rows)
        assert table[0, 2] == pytest.approx(costs.compute_ms(dear, 0, 2, rows))
        assert table[2, 4] == pytest.approx(costs.compute_ms(dear, 2, 4, rows))


def test_chunks_of_a_long_prompt_overlap_on_the_stages() -> None:
    profile = model([1.0] * 8)
    demand = replace(SMALL, prompt=1024, context=2048)
    machines = cluster([FRONT, LAST], 1)
    one = predict(machines, profile, (PlacedStage(FRONT, 0, 8),), demand, Drafting(0))
    two = predict(machines, profile, (PlacedStage(FRONT, 0, 4), PlacedStage(LAST, 4, 8)), demand, Drafting(0))
    assert 0.5 < two.ttft_ms / one.ttft_ms < 0.65


def test_memory_is_weights_caches_and_buffers() -> None:
    profile = replace(model([1.0] * 4), head_kv_bytes=8, logits_bytes=1000, scratch_bytes=500)
    costs = StageCosts(profile, SMALL)
    buffers = 32 * (500 + 6 * 256)
    assert costs.bytes_of(0, 2) == 2 * (MIB + 256 * 256) + buffers
    assert costs.bytes_of(2, 4) == 2 * (MIB + 256 * 256) + buffers + MIB + 8 * 256 + 32 * 2 * 1000
    twice = StageCosts(profile, replace(SMALL, sequences=2))
    assert twice.bytes_of(0, 2) - costs.bytes_of(0, 2) == 2 * 256 * 256
