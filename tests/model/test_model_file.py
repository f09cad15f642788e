"""A model is the same thing in one file and in shards, and says what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import ModelFileError
from engine.model.file import ModelFile
from tests.model.gguf_files import N_EMBD, N_LAYERS, N_VOCAB, RawGguf, number_key, string, write_small_model


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return ModelFile.open(write_small_model(tmp_path / "small.gguf"))


@pytest.fixture(params=[False, True], ids=["shards", "first shard without tensors"])
def first_shard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "shards"
    directory.mkdir()
    write_small_model(directory / "small.gguf", split_max_tensors=8, small_first_shard=request.param)
    return min(directory.iterdir())


def test_attributes_come_from_the_metadata(model: ModelFile) -> None:
    assert (model.name, model.architecture) == ("Small", "llama")
    assert (model.n_layers, model.n_nextn, model.n_embd, model.n_vocab) == (N_LAYERS, 0, N_EMBD, N_VOCAB)
    assert model.context_length == 128
    assert model.key("attention.head_count") == 2
    assert model.key("no.such.key", "default") == "default"
    assert model.metadata["test.flags"] == (True, False)
    assert model.metadata_types["test.flags"] is gguf.GGUFValueType.BOOL
    assert "tokenizer.ggml.tokens" in model.metadata
    assert len(model.metadata["tokenizer.ggml.tokens"]) == N_VOCAB


def test_tensor_bytes_are_those_of_ggufs_reader(model: ModelFile) -> None:
    reader = gguf.GGUFReader(model.path)
    assert [tensor.name for tensor in reader.tensors] == list(model.tensors)
    for tensor in reader.tensors:
        np.testing.assert_array_equal(model.data(tensor.name), tensor.data.view(np.uint8).reshape(-1))
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    np.testing.assert_array_equal(model.rows("token_embd.weight", [5, 0, 5]), embedding.data[[5, 0, 5]])


def test_shards_are_one_model(first_shard: Path, model: ModelFile) -> None:
    split = ModelFile.open(first_shard)
    assert len(split.paths) > 2
    assert split.path == first_shard
    assert split.name == model.name
    assert split.fingerprint == model.fingerprint
    assert set(split.tensors) == set(model.tensors)
    for name in model.tensors:
        np.testing.assert_array_equal(split.data(name), model.data(name))


def test_any_shard_opens_the_model(first_shard: Path) -> None:
    for path in first_shard.parent.iterdir():
        assert ModelFile.open(path).path == first_shard


def test_a_missing_shard_is_named(first_shard: Path) -> None:
    second = sorted(first_shard.parent.iterdir())[1]
    second.unlink()
    with pytest.raises(ModelFileError, match=rf"shard .*{second.name} is missing"):
        ModelFile.open(first_shard)


def test_renamed_shards_are_refused(first_shard: Path) -> None:
    renamed = first_shard.rename(first_shard.with_name("model.gguf"))
    with pytest.raises(ModelFileError, match="not named like one"):
        ModelFile.open(renamed)


def test_exchanged_shards_are_refused(first_shard: Path) -> None:
    second, third = sorted(first_shard.parent.iterdir())[1:3]
    shutil.copyfile(second, third)
    with pytest.raises(ModelFileError, match=r"split\.no"):
        ModelFile.open(first_shard)


def test_the_fingerprint_covers_metadata_and_shapes_but_not_weights(tmp_path: Path, model: ModelFile) -> None:
    other_weights = ModelFile.open(write_small_model(tmp_path / "other.gguf", seed=1))
    assert other_weights.fingerprint == model.fingerprint
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(model.path.read_bytes().replace(b"token 7", b"token 9", 1))
    assert ModelFile.open(changed).fingerprint != model.fingerprint
    changed.write_bytes(model.path.read_bytes().replace(b"output_norm.weight", b"output_norm.weighs", 1))
    assert ModelFile.open(changed).fingerprint != model.fingerprint


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([], "general.architecture"),
        ([string("general.architecture") + b"\x08\0\0\0" + string("clip")], "clip.block_count"),
        (
            [
                string("general.architecture") + b"\x08\0\0\0" + string("llama"),
                number_key("llama.block_count", 2),
                number_key("llama.nextn_predict_layers", 2),
                number_key("llama.embedding_length", 8),
            ],
            "llama.block_count",
        ),
    ],
    ids=["no architecture", "no language model", "nothing but NextN blocks"],
)
def test_what_is_no_language_model_is_refused_by_key(keys: list[bytes], words: str, tmp_path: Path) -> None:
    path = RawGguf(keys=keys).write(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match=words):
        ModelFile.open(path)
