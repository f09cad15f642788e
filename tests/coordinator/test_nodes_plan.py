"""Which machine serves which layers, from what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.coordinator.nodes_plan import (
    OWN,
    UNREACHABLE_MS,
    Machine,
    Spans,
    cluster_of,
    pinned_spans,
    plan_spans,
)
from engine.errors import SkippyError
from engine.model.file import ModelFile
from engine.planning.profiles import ComputeCosts, LinkProfile
from tests.faults.harness import plan
from tests.faults.tiny_llama import LAYERS, write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_given_cuts_go_to_the_nodes_in_their_order() -> None:
    spans = pinned_spans((2, 4), 6, ["a", "b", "c"])
    assert spans.own == (0, 2)
    assert spans.on_nodes == (("a", 2, 4), ("b", 4, 6))
    assert spans.warnings == ("no layers are left for c: give as many cuts as there are nodes",)
    assert pinned_spans((2, 4), 6, ["a", "b"]).warnings == ()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last placement is remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def machine(name: str, speed: float = 1.0, free_gib: float = 1.0) -> Machine:
    """A machine that takes 100 µs for a MiB of weights, or more or less of it by its speed."""
    us = 100.0 / speed
    costs = ComputeCosts(layer_us=(us,) * 7, head_us=(us,) * 7, call_us=1.0, prefill_us=us)
    url = "" if name == OWN else f"ws://{name}:1"
    return Machine(name, url, int(free_gib * (1 << 30)), 1, costs)


def spans_of(model: Path, *machines: Machine, stages: int = 0, ways: tuple[LinkProfile, ...] = ()) -> Spans:
    run_plan = plan(model, (), stages=stages, use_nodes=True)
    return plan_spans(ModelFile.open(model), cluster_of(machines, ways), run_plan, 512)


def test_a_machine_that_is_fast_enough_does_it_alone(model: Path) -> None:
    spans = spans_of(model, machine(OWN), machine("a"), ways=(LinkProfile(OWN, "a", rtt_ms=1.0),))
    assert (spans.own, spans.on_nodes) == ((0, LAYERS), ())


def test_whoever_asks_for_more_stages_is_told_what_they_cost(model: Path) -> None:
    ways = (LinkProfile(OWN, "a", rtt_ms=1.0), LinkProfile("a", "b", rtt_ms=1.0))
    spans = spans_of(model, machine(OWN), machine("a"), machine("b"), stages=3, ways=ways)
    assert len(spans.on_nodes) == 2
    (warning,) = spans.warnings
    assert warning.startswith(f"one machine alone is faster: {OWN} makes ")


def test_whoever_asks_for_more_stages_than_there_are_machines_is_warned(model: Path) -> None:
    spans = spans_of(model, machine(OWN), machine("a"), stages=5)
    assert len(spans.on_nodes) == 1
    assert spans.warnings[0] == "2 stages instead of 5: only 2 machines can be used, this one included"


def test_a_node_that_is_much_faster_gets_all_but_the_first_layer(model: Path) -> None:
    spans = spans_of(model, machine(OWN, speed=0.01), machine("a", speed=10))
    assert spans.own == (0, 1)
    assert spans.on_nodes == (("a", 1, LAYERS),)


def test_nodes_that_cannot_reach_each_other_are_no_neighbours(model: Path) -> None:
    ways = tuple(
        LinkProfile(sender, receiver, UNREACHABLE_MS if {sender, receiver} == {"a", "b"} else 1.0)
        for sender in (OWN, "a", "b", "c")
        for receiver in ("a", "b", "c")
        if sender != receiver
    )
    machines = (machine(OWN), machine("a"), machine("b"), machine("c"))
    spans = spans_of(model, *machines, stages=4, ways=ways)
    assert [name for name, _, _ in spans.on_nodes][1] == "c"


def test_a_machine_that_could_not_be_timed_is_taken_to_be_like_the_others(model: Path) -> None:
    unknown = Machine("a", "ws://a:1", 1 << 30, 1, None)
    assert spans_of(model, machine(OWN), unknown, stages=2).on_nodes


def test_a_model_that_fits_nowhere_is_refused_by_how_much(model: Path) -> None:
    with pytest.raises(SkippyError, match="does not fit") as refusal:
        spans_of(model, machine(OWN, free_gib=0), machine("a", free_gib=0))
    assert refusal.value.code == "memory"


def test_slices_stay_where_they_are_unless_moving_them_pays(model: Path) -> None:
    own = machine(OWN, speed=0.01)
    first = spans_of(model, own, machine("a", speed=0.0102), machine("b", speed=0.01), stages=3)
    again = spans_of(model, own, machine("a", speed=0.01), machine("b", speed=0.0102), stages=3)
    assert again.on_nodes == first.on_nodes
    faster = spans_of(model, own, machine("a", speed=0.01), machine("b", speed=0.02), stages=3)
    assert faster.on_nodes != first.on_nodes


def test_another_number_of_stages_is_a_new_choice(model: Path) -> None:
    machines = (machine(OWN), machine("a"), machine("b"))
    assert len(spans_of(model, *machines, stages=3).on_nodes) == 2
    assert len(spans_of(model, *machines, stages=2).on_nodes) == 1


def test_a_placement_of_last_time_that_does_not_fit_any_more_is_not_kept(model: Path) -> None:
    machines = (machine(OWN), machine("a", speed=1.02), machine("b"))
    ((node, _, _), *_) = spans_of(model, *machines, stages=2).on_nodes
    assert node == "a"
    ((node, _, _), *_) = spans_of(
        model, machine(OWN), machine("a", free_gib=0), machine("b"), stages=2
    ).on_nodes
    assert node == "b"
