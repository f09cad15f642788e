"""Cuts that make the slowest stage as fast as can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CutRefused, UsageError
from engine.model.demo import demo_available, demo_model
from engine.model.file import ModelFile
from engine.planning.balance import CostProfile, balanced_split, best_cuts, cost_profile
from engine.planning.describe import layer_bytes
from engine.planning.measure import compute_costs
from engine.planning.profiles import MIB, to_plain
from tests.conformance.cases import MODELS


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.planning.measure._SECONDS", 0.1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelFile]:
    def make(name: str) -> ModelFile:
        path = tmp_path_factory.mktemp("tiny") / f"{name}.gguf"
        MODELS[name].write(path)
        return ModelFile.open(path)

    return make


def slowest(profile: CostProfile, cuts: tuple[int, ...]) -> float:
    edges = (0, *cuts, len(profile.layers))
    return max(profile.stage_cost(first, end) for first, end in pairwise(edges))


@settings(max_examples=60, deadline=None)
@given(
    layers=st.lists(st.integers(1, 50), min_size=2, max_size=9),
    head=st.integers(0, 100),
    stages=st.integers(2, 4),
    data=st.data(),
)
def test_no_other_cuts_make_the_slowest_stage_faster(
    layers: list[int], head: int, stages: int, data: st.DataObject
) -> None:
    profile = CostProfile(tuple(map(float, layers)), float(head), measured=True)
    allowed = data.draw(st.frozensets(st.integers(1, len(layers) - 1)))
    possible = list(combinations(sorted(allowed), stages - 1))
    if not possible:
        with pytest.raises(CutRefused):
            best_cuts(profile, stages, allowed)
        return
    cuts = best_cuts(profile, stages, allowed)
    assert cuts in possible
    assert slowest(profile, cuts) == min(slowest(profile, other) for other in possible)


def test_the_head_counts_as_layers() -> None:
    everywhere = frozenset(range(1, 30))
    assert best_cuts(CostProfile((1.0,) * 30, 0.0, True), 2, everywhere) == (15,)
    assert best_cuts(CostProfile((1.0,) * 30, 8.0, True), 2, everywhere) == (19,)
    assert best_cuts(CostProfile((1.0,) * 30, 90.0, True), 3, everywhere) == (14, 29)


def test_the_costs_of_the_machine_decide(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    model = tiny("llama-q8_0")
    costs = compute_costs(model, 1, cache_dir=tmp_path)
    (kept,) = (tmp_path / "profiles").iterdir()
    layer = layer_bytes(model)[1][0] / MIB * costs.layer_us[0]
    for heads, cut in ((0.0, 2), (10 * layer, 3)):
        changed = replace(costs, head_us=(heads,) * 7)
        kept.write_bytes(orjson.dumps(to_plain(changed)))
        assert balanced_split(model, 2, 1, cache_dir=tmp_path) == (cut,)


def test_where_nothing_can_be_timed_bytes_decide(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    no_directory = tmp_path / "file"
    no_directory.write_text("")
    model = tiny("qwen3moe")
    profile = cost_profile(model, 1, cache_dir=no_directory)
    assert not profile.measured
    assert profile.head == model.tensors["output.weight"].n_bytes
    experts = [tensor for tensor in model.tensors.values() if tensor.name.startswith("blk.0.")]
    assert profile.layers[0] == sum(
        tensor.n_bytes / 2 if "_exps" in tensor.name else tensor.n_bytes for tensor in experts
    )
    assert balanced_split(model, 2, 1, cache_dir=no_directory)


def test_one_stage_needs_no_cut_and_more_stages_than_layers_are_refused(
    tiny: Callable[[str], ModelFile], tmp_path: Path
) -> None:
    model = tiny("llama-q8_0")
    assert balanced_split(model, 1, 1, cache_dir=tmp_path) == ()
    assert balanced_split(model, 4, 1, cache_dir=tmp_path) == (1, 2, 3)
    for stages in (0, 5):
        with pytest.raises(UsageError, match="has 4 layers"):
            balanced_split(model, stages, 1, cache_dir=tmp_path)


@pytest.mark.model
def test_the_default_model_is_cut_behind_its_middle(tmp_path: Path) -> None:
    if not demo_available():
        pytest.skip("the default model is not installed")
    model = ModelFile.open(demo_model())
    profile = cost_profile(model, 1, cache_dir=tmp_path)
    assert profile.measured
    assert profile.head > profile.layers[0]
    (cut,) = balanced_split(model, 2, 1, cache_dir=tmp_path)
    assert 15 < cut < 25
