"""A head and a llama model written as one file: llama.cpp computes what the block's formula says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from engine.compute.mtp import DraftHead
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.errors import ArchitectureRefused, ModelFileError
from engine.model.file import ModelFile
from engine.model.header import check_header
from engine.model.nextn import block_shapes, head_content, read_head, with_nextn
from engine.model.slices import whole_model
from tests.training.reference import ReferenceModel
from tests.training.tiny_chat import LAYERS, WIDTH, write_tiny_chat

TOKENS = [5, 90, 33, 120, 200, 7, 64, 18]
OPTIONS = ComputeOptions(context=64)


def random_head(model: ModelFile) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(9)
    arrays = {}
    for name, shape in block_shapes(model).items():
        data = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.25)
        arrays[name] = 1 + data / 4 if "norm" in name else data
    return arrays


def write_head(path: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    with path.open("wb") as file:
        head_content(arrays, "a head").write(file)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> ModelFile:
    write_tiny_chat(tmp_path / "chat.gguf", tied=request.param)
    return ModelFile.open(tmp_path / "chat.gguf")


def joined(source: ModelFile, folder: Path) -> ModelFile:
    write_head(folder / "head.gguf", random_head(source))
    with (folder / "joined.gguf").open("wb") as file:
        with_nextn(source, folder / "head.gguf", "joined").write(file)
    return ModelFile.open(folder / "joined.gguf")


def test_matrices_of_a_head_are_quantised_and_norms_are_kept(source: ModelFile, tmp_path: Path) -> None:
    arrays = random_head(source)
    write_head(tmp_path / "head.gguf", arrays)
    types = {tensor.name: tensor.type for tensor in check_header(tmp_path / "head.gguf").tensors}
    assert types["nextn.eh_proj.weight"] is GGMLQuantizationType.Q8_0
    assert types["attn_norm.weight"] is GGMLQuantizationType.F32
    read = read_head(tmp_path / "head.gguf")
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_allclose(read[name], array, atol=0.0 if "norm" in name else 0.01)


def test_llama_cpp_computes_trunk_and_block_as_written(source: ModelFile, tmp_path: Path) -> None:
    """The whole file through a stage and its draft head, beside numpy: llama.cpp's cache is in float16."""
    model = joined(source, tmp_path)
    assert (model.architecture, model.n_layers, model.n_nextn) == ("mimo2", LAYERS, 1)
    reference = ReferenceModel(source, read_head(tmp_path / "head.gguf"))
    hidden = reference.trunk(TOKENS)
    stage = Stage(whole_model(model), OPTIONS)
    head = DraftHead(stage.model, stage.context, OPTIONS)
    try:
        stage.keep_hidden_rows(True)
        stage.forward(0, 0, tokens=TOKENS[:-1])
        np.testing.assert_allclose(stage.all_logits(), reference.logits(hidden)[:-1], atol=0.1, rtol=0.02)
        np.testing.assert_allclose(stage.hidden_rows(), hidden[:-1], atol=0.1, rtol=0.02)
        head.record(0, 0, stage.hidden_rows())
        head.feed(0, TOKENS)
        expected = reference.block_logits(TOKENS, hidden)
        np.testing.assert_allclose(head.logits(), expected, atol=0.2, rtol=0.02)
        assert head.logits().argmax() == expected.argmax()
    finally:
        head.close()
        stage.close()


def test_what_the_graph_cannot_compute_is_refused_by_name(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": np.zeros(WIDTH, dtype=np.float32)}
    write_tiny_chat(tmp_path / "bias.gguf", more=bias)
    model = ModelFile.open(tmp_path / "bias.gguf")
    write_head(tmp_path / "head.gguf", random_head(model))
    with pytest.raises(ArchitectureRefused, match=r"it has the tensor blk\.0\.attn_q\.bias"):
        with_nextn(model, tmp_path / "head.gguf", "x")


def test_a_head_of_another_model_is_refused(source: ModelFile, tmp_path: Path) -> None:
    arrays = random_head(source)
    arrays["ffn_up.weight"] = arrays["ffn_up.weight"][:-32]
    write_head(tmp_path / "head.gguf", arrays)
    with pytest.raises(ModelFileError, match=r"does not fit tiny chat: ffn_up\.weight is \(64, 64\)"):
        with_nextn(source, tmp_path / "head.gguf", "x")
