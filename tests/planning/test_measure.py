"""Timing a model that is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize

from engine.errors import CacheError, ModelFileError, UsageError
from engine.model.file import ModelFile
from engine.planning.describe import describe_model
from engine.planning.measure import compute_costs, measure_costs
from engine.planning.synthetic import measuring_header, open_timed_model, random_slice
from tests.conformance.cases import MODELS
from tests.model.gguf_files import write_small_model


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.planning.measure._SECONDS", 0.1)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[str], ModelFile]:
    def make(name: str) -> ModelFile:
        MODELS[name].write(tmp_path / f"{name}.gguf")
        return ModelFile.open(tmp_path / f"{name}.gguf")

    return make


def test_a_header_is_enough_to_time_a_model_and_the_result_is_kept(
    tiny: Callable[[str], ModelFile], tmp_path: Path
) -> None:
    model, cache = tiny("llama-q8_0"), tmp_path / "cache"
    header = measuring_header(model)
    assert len(header) < 4096
    costs = measure_costs(header, 1, cache_dir=cache)
    assert costs.fingerprint == model.fingerprint
    assert min(costs.layer_us) > 0
    assert costs.prefill_us > 0
    assert measure_costs(header, 1, cache_dir=cache) == costs
    assert compute_costs(model, 1, cache_dir=cache) == costs
    assert [path.name for path in cache.iterdir()] == ["profiles"]  # nothing else is left
    (kept,) = (cache / "profiles").iterdir()
    kept.write_bytes(b"{}")
    assert measure_costs(header, 1, cache_dir=cache) != costs


def test_the_head_of_the_model_is_timed_too(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    assert compute_costs(tiny("mimo2"), 1, cache_dir=tmp_path).draft_us > 0


def test_random_weights_stand_for_small_numbers(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    model = tiny("llama-q8_0")
    timed = open_timed_model(measuring_header(model), tmp_path)
    part = random_slice(timed, timed.one, tmp_path / "one.gguf")
    slice_ = ModelFile.open(part.path)
    assert {name: (t.shape, t.type) for name, t in slice_.tensors.items() if name.startswith("blk.0.")} == {
        name.replace(f"blk.{timed.one[0]}.", "blk.0."): (t.shape, t.type)
        for name, t in model.tensors.items()
        if name.startswith(f"blk.{timed.one[0]}.")
    }
    for name, tensor in slice_.tensors.items():
        values = dequantize(slice_.data(name), tensor.type)
        assert np.isfinite(values).all()
        assert 0 < np.abs(values).max() <= 1


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(
    tiny: Callable[[str], ModelFile], tmp_path: Path
) -> None:
    model = tiny("llama-q8_0")
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot time"):
        compute_costs(model, 1, cache_dir=tmp_path / "file")


def test_what_is_no_such_header_is_refused(tiny: Callable[[str], ModelFile], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        measure_costs(b"GGUF", 1, cache_dir=tmp_path)
    with pytest.raises(ModelFileError, match="no header of a model to be timed"):
        measure_costs(tiny("llama-q8_0").path.read_bytes(), 1, cache_dir=tmp_path)
    write_small_model(tmp_path / "small.gguf")
    with pytest.raises(UsageError, match="too few"):
        measuring_header(ModelFile.open(tmp_path / "small.gguf"))


def test_a_profile_counts_layers_experts_caches_and_the_head(tiny: Callable[[str], ModelFile]) -> None:
    dense, experts, mla = tiny("llama-q8_0"), tiny("qwen3moe"), tiny("deepseek2")
    profile = describe_model(dense)
    tensors = dense.tensors
    assert profile.cuts == (1, 2, 3)
    assert sum(layer.weight_bytes for layer in profile.layers) == sum(
        tensor.n_bytes for name, tensor in tensors.items() if name.startswith("blk.")
    )
    heads, kv_heads = dense.key("attention.head_count"), dense.key("attention.head_count_kv")
    assert profile.layers[0].kv_bytes == 2 * 2 * kv_heads * dense.n_embd // heads
    assert profile.row_bytes == 4 * dense.n_embd
    layer = describe_model(experts).layers[0]
    assert layer.read_bytes < layer.weight_bytes  # two of four experts
    drafts = describe_model(mla)
    assert drafts.native_mtp
    assert drafts.head_kv_bytes > 0
    assert drafts.layers[0].kv_bytes == 2 * (32 + 16)  # keys only: 32 latent values, 16 with positions
