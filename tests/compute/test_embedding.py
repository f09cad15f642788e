"""Rows of the token embedding, of every type that a file may have."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from engine.compute.embedding import EmbeddingTable
from engine.errors import ModelFileError, ProtocolError
from engine.model.file import ModelFile

N_EMBD, N_VOCAB = 512, 40
NAMES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS IQ3_S MXFP4 TQ1_0"
TYPES = [Type[name] for name in NAMES.split()]


def model_with(kind: Type, path: Path, tensor: str = "token_embd.weight") -> ModelFile:
    """A model of one tensor. Any bytes are a valid quantised matrix; small ones keep the scales finite."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    size = N_VOCAB * N_EMBD // gguf.GGML_QUANT_SIZES[kind][0] * block_bytes
    data = np.random.default_rng(kind).integers(0, 0x40, size, dtype=np.uint8).reshape(N_VOCAB, -1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(N_EMBD)
    writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFile.open(path)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_have_the_bits_of_the_reference_implementation(tmp_path: Path, kind: Type) -> None:
    model = model_with(kind, tmp_path / "m.gguf")
    tokens = [0, 39, 7, 7, 21]
    rows = EmbeddingTable(model).rows(tokens)
    wanted = gguf.quants.dequantize(model.rows("token_embd.weight", tokens), kind).reshape(5, N_EMBD)
    assert rows.dtype == np.float32
    assert len(np.unique(rows)) > 2
    assert np.array_equal(
        rows.view(np.uint32), np.ascontiguousarray(wanted, dtype=np.float32).view(np.uint32)
    )


def test_rows_are_scaled_in_float32(tmp_path: Path) -> None:
    model = model_with(Type.F16, tmp_path / "m.gguf")
    scale = 24.0416305603426  # sqrt(578): no float32
    plain = EmbeddingTable(model).rows([3, 4])
    assert np.array_equal(EmbeddingTable(model, scale).rows([3, 4]), plain * np.float32(scale))


@pytest.mark.parametrize("token", [-1, N_VOCAB])
def test_tokens_outside_the_table_are_refused(tmp_path: Path, token: int) -> None:
    table = EmbeddingTable(model_with(Type.Q8_0, tmp_path / "m.gguf"))
    with pytest.raises(ProtocolError, match=f"token id {token} is outside the vocabulary of {N_VOCAB}"):
        table.rows([0, token])


def test_a_model_without_the_table_is_refused(tmp_path: Path) -> None:
    model = model_with(Type.Q8_0, tmp_path / "m.gguf", "output.weight")
    with pytest.raises(ModelFileError, match=r"no token_embd\.weight"):
        EmbeddingTable(model)
