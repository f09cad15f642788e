"""Cuts that make the largest share of a stage as small as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from engine.planning.profiles import MIB, WINDOW_ROWS, to_plain
from tests.conformance.cases import MODELS

Priced = Callable[[Sequence[float]], tuple[ModelFile, Path]]


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


def largest_share(profile: CostProfile, cuts: tuple[int, ...]) -> float:
    edges = (0, *cuts, len(profile.layers))
    return max(profile.stage_cost(first, end) for first, end in pairwise(edges))


@settings(max_examples=60, deadline=None)
@given(
    layers=st.lists(st.integers(1, 50), min_size=2, max_size=9),
    head=st.integers(0, 100),
    stages=st.integers(2, 4),
    data=st.data(),
)
def test_no_other_cuts_make_the_largest_share_smaller(
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
    assert largest_share(profile, cuts) == min(largest_share(profile, other) for other in possible)


def test_the_head_counts_as_layers() -> None:
    everywhere = frozenset(range(1, 30))
    assert best_cuts(CostProfile((1.0,) * 30, 0.0, True), 2, everywhere) == (15,)
    assert best_cuts(CostProfile((1.0,) * 30, 8.0, True), 2, everywhere) == (19,)
    assert best_cuts(CostProfile((1.0,) * 30, 90.0, True), 3, everywhere) == (14, 29)


@pytest.fixture
def priced(tiny: Callable[[str], ModelFile], tmp_path: Path) -> Priced:
    """A model of four layers, and a folder that has its head cost so many layers, by rows of a window."""

    def make(heads: Sequence[float]) -> tuple[ModelFile, Path]:
        model = tiny("llama-q8_0")
        costs = compute_costs(model, 1, cache_dir=tmp_path)
        (kept,) = (tmp_path / "profiles").iterdir()
        mib = layer_bytes(model)[1][0] / MIB
        head_us = [head * mib * us for head, us in zip(heads, costs.layer_us, strict=True)]
        kept.write_bytes(orjson.dumps(to_plain(replace(costs, head_us=tuple(head_us)))))
        return model, tmp_path

    return make


def test_the_costs_of_the_machine_decide(priced: Priced) -> None:
    for heads, cut in ((0.0, 2), (10.0, 3)):
        model, folder = priced([heads] * len(WINDOW_ROWS))
        assert balanced_split(model, 2, 1, cache_dir=folder) == (cut,)


@pytest.mark.parametrize("heads", [(4.0,) * 7, (4.0, 12.0, 4.0, 4.0, 4.0, 4.0, 4 / 3)])
def test_work_is_half_prompts_without_a_head_and_half_windows_of_all_sizes(
    priced: Priced, heads: Sequence[float]
) -> None:
    """A head of four layers is half of a window of this model, of twelve layers 3/4, of 4/3 layers 1/4."""
    model, folder = priced(heads)
    profile = cost_profile(model, 1, cache_dir=folder)
    assert profile.measured
    assert profile.head == pytest.approx(0.5 / 2)
    assert profile.layers == pytest.approx([(1 - 0.5 / 2) / 4] * 4)


def test_where_nothing_can_be_timed_bytes_decide(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    no_directory = tmp_path / "file"
    no_directory.write_text("")
    model = tiny("qwen3moe")
    profile = cost_profile(model, 1, cache_dir=no_directory)
    assert not profile.measured
    read = [0.0] * model.n_layers
    for layer in range(model.n_layers):
        for tensor in model.tensors.values():
            if tensor.name.startswith(f"blk.{layer}."):
                read[layer] += tensor.n_bytes / 2 if "_exps" in tensor.name else tensor.n_bytes
    head = model.tensors["output.weight"].n_bytes
    assert profile.head == pytest.approx(head / (head + sum(read)) / 2)
    assert profile.layers == pytest.approx([(1 - profile.head) * part / sum(read) for part in read])
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
    """Between the cut for prompts and the one for windows."""
    if not demo_available():
        pytest.skip("the default model is not installed")
    model = ModelFile.open(demo_model())
    profile = cost_profile(model, 1, cache_dir=tmp_path)
    assert profile.measured
    assert profile.head > profile.layers[0]
    (cut,) = balanced_split(model, 2, 1, cache_dir=tmp_path)
    assert 15 < cut < 20
