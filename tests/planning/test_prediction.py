"""The arithmetic of predicted times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.planning.costs import StageCosts
from engine.planning.prediction import Drafting, PlacedStage, predict, window_ms
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


def test_rows_cost_what_was_measured_also_where_fewer_of_them_cost_more() -> None:
    """Three rows of one layer and the head of the default model take longer than four: tiles of four rows."""
    profile = replace(model([1.0] * 4), native_mtp=True)
    us = (4500.0, 9400.0, 16200.0, 12400.0, 19600.0, 25000.0, 50000.0)
    dear = replace(FRONT, compute=replace(FRONT.compute, layer_us=us, draft_us=100.0))
    costs = StageCosts(profile, SMALL)
    kv = 256 * 2 * 96 / MIB * 5e-3  # of each row
    for rows, each in ((1, 4.5), (2, 9.4), (3, 16.2), (4, 12.4), (5, 19.6), (6, 19.6 + 5.4 / 3)):
        head, attention = 2.0 + 0.4 * (rows - 1), rows * kv * (2 if rows == 1 else 1)
        assert costs.compute_ms(dear, 0, 2, rows) == pytest.approx(0.1 + 2 * each + attention)
        assert costs.compute_ms(dear, 2, 4, rows) == pytest.approx(0.1 + 2 * each + attention + head)
        table = costs.table(dear, rows)
        assert table[0, 2] == pytest.approx(costs.compute_ms(dear, 0, 2, rows))
        assert table[2, 4] == pytest.approx(costs.compute_ms(dear, 2, 4, rows))
    machines = cluster([dear], 0)
    alone = (PlacedStage(dear, 0, 4),)
    assert window_ms(machines, costs, alone, 3) > window_ms(machines, costs, alone, 4)
    assert predict(machines, profile, alone, SMALL, Drafting(4, 1.0)).drafts == 3


@pytest.mark.parametrize("name", ["layer_us", "head_us"])
def test_times_that_are_not_one_for_each_number_of_rows_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must hold 7 times, for 1, 2, 3, 4, 5, 8, 16 rows"):
        replace(FRONT.compute, **{name: (1.0,) * 5})


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
