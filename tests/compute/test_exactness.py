"""Rows of a window against single rows, bit for bit, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.model.file import ModelFile
from engine.model.slices import whole_model
from tests.compute.conftest import TinyModels


def largest_differences(stage: Stage, tokens: list[int], cached: int, widths: tuple[int, ...]) -> list[float]:
    """Between the rows of a window of each width and the same rows one by one, after `cached` tokens."""
    for start in range(0, cached, stage.max_rows):
        stage.forward(0, start, tokens=tokens[start : min(cached, start + stage.max_rows)], logits="none")
    single = []
    for position in range(cached, cached + max(widths)):
        stage.forward(0, position, tokens=tokens[position : position + 1])
        single.append(stage.logits(0).copy())
    differences = []
    for width in widths:
        stage.forward(0, cached, tokens=tokens[cached : cached + width])
        differences.append(float(np.abs(stage.all_logits() - np.stack(single[:width])).max()))
    return differences


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "cached"),
    [
        (ComputeOptions(context=560), (100, 530)),
        (ComputeOptions(context=560, threads=2, exact=True), (530,)),
    ],
    ids=["one thread", "exact with two threads"],
)
def test_windows_of_the_default_model_equal_single_rows(
    demo: ModelFile, text_tokens: list[int], options: ComputeOptions, cached: tuple[int, ...]
) -> None:
    """Beyond 512 cells llama.cpp splits the attention of a single row among its threads."""
    stage = Stage(whole_model(demo), options)
    assert stage.row_exact
    for length in cached:
        assert largest_differences(stage, text_tokens, length, (1, 2, 3, 4, 5, 6)) == [0.0] * 6
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
