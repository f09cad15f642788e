"""Rows of a window against single rows, bit for bit, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice, whole_model
from tests.compute.conftest import TinyModels

Inputs = Sequence[int] | np.ndarray  # tokens, or hidden states


def largest_differences(stage: Stage, inputs: Inputs, cached: int, widths: tuple[int, ...]) -> list[float]:
    """Between the rows of a window of each width and the same rows one by one, after `cached` rows."""

    def run(start: int, end: int) -> np.ndarray:
        if stage.slice.is_first:
            stage.forward(0, start, tokens=inputs[start:end])
        else:
            stage.forward(0, start, hidden=inputs[start:end])
        return stage.all_logits().copy()

    for start in range(0, cached, stage.max_rows):
        run(start, min(cached, start + stage.max_rows))
    single = np.concatenate([run(position, position + 1) for position in range(cached, cached + max(widths))])
    return [float(np.abs(run(cached, cached + width) - single[:width]).max()) for width in widths]


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [ComputeOptions(context=560), ComputeOptions(context=560, threads=2, exact=True)],
    ids=["one thread", "exact with two threads"],
)
def test_windows_of_the_default_model_equal_single_rows(
    demo: ModelFile, text_tokens: list[int], tmp_path: Path, options: ComputeOptions
) -> None:
    """Its last layers and the head. Beyond 512 cells the attention of a single row is split among threads."""
    stage = Stage(ensure_slice(demo, 26, 30, cache_dir=tmp_path), options)
    assert stage.row_exact
    assert not stage.context.pairs_single_rows
    rows = EmbeddingTable(demo).rows(text_tokens[:560]) * np.float32(20)
    for cached in (100, 530):
        assert largest_differences(stage, rows, cached, (1, 2, 3, 4, 5, 6)) == [0.0] * 6
    stage.close()


@pytest.mark.parametrize("name", ["llama", "llama-q8_0", "mimo2", "deepseek2", "qwen3moe", "gemma3"])
def test_the_exact_setting_makes_windows_equal_single_rows(tiny: TinyModels, name: str) -> None:
    """Also where single rows have kernels of their own: float weights, and routers of experts."""
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 64, 600)]
    stage = Stage(whole_model(tiny(name)), ComputeOptions(context=600, exact=True, batch_rows=128))
    assert stage.row_exact
    for cached in (20, 540):
        assert largest_differences(stage, tokens, cached, (1, 2, 5, 9, 17, 60)) == [0.0] * 6
    stage.close()


def test_float_weights_are_not_called_exact_outside_the_exact_setting(tiny: TinyModels) -> None:
    options = ComputeOptions(context=64, batch_rows=32)
    tokens = [int(token) for token in np.random.default_rng(2).integers(0, 64, 64)]
    stage = Stage(whole_model(tiny("llama")), options)
    assert not stage.row_exact
    assert max(largest_differences(stage, tokens, 20, (2, 4))) > 0
    stage.close()
    for wrong in (replace(options, threads=2), replace(options, gpu_layers=-1)):
        stage = Stage(whole_model(tiny("llama-q8_0")), wrong)
        assert not stage.row_exact
        stage.close()


def test_asking_for_exactness_leaves_an_empty_sequence(tiny: TinyModels) -> None:
    stage = Stage(whole_model(tiny("llama-q8_0")), ComputeOptions(context=64, batch_rows=32))
    stage.forward(0, 0, tokens=[1, 2, 3])
    wanted = stage.logits(2).copy()
    stage.release(0)
    assert stage.row_exact
    assert stage.length(0) == 0
    stage.forward(0, 0, tokens=[1, 2, 3])
    assert np.array_equal(stage.logits(2), wanted)
    stage.close()


def test_the_last_position_of_a_context_can_be_paired(tiny: TinyModels) -> None:
    stage = Stage(whole_model(tiny("llama")), ComputeOptions(context=256, exact=True, batch_rows=64))
    assert stage.context.pairs_single_rows
    for start in range(0, 255, 51):
        stage.forward(0, start, tokens=[3] * 51)
    stage.forward(0, 255, tokens=[4])
    assert stage.length(0) == 256
    stage.close()
