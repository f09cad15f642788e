"""A slice holds the planned tensors byte for byte and describes itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType

from engine.errors import ModelFileError, UsageError
from engine.model.architectures import SliceRules
from engine.model.file import ModelFile
from engine.model.rebase import Block, SlicePlan
from engine.model.slices import ensure_slice, open_slice, slice_content, whole_model
from engine.model.writer import GgufContent, copied, encode_value, zeros
from tests.model.gguf_files import N_EMBD, N_LAYERS, N_VOCAB, write_small_model


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return ModelFile.open(write_small_model(tmp_path / "small.gguf"))


def plan_of(*blocks: Block, token_embd: str = "full", output: str = "full", **changes: object) -> SlicePlan:
    parts: dict[str, object] = {"set_metadata": {}, "drop_metadata": frozenset(), "native_mtp": False}
    parts |= {"rules": SliceRules(last_block=len(blocks) - 1)} | changes
    return SlicePlan(blocks=blocks, token_embd=token_embd, output=output, **parts)  # type: ignore[arg-type]


def written(model: ModelFile, plan: SlicePlan, path: Path) -> gguf.GGUFReader:
    """The slice of a plan, read back by the `gguf` package."""
    with path.open("wb") as file:
        slice_content(model, plan, 0, len(plan.blocks)).write(file)
    return gguf.GGUFReader(path)


def tensors(reader: gguf.GGUFReader) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in reader.tensors}


def test_blocks_are_renumbered_and_copied_byte_for_byte(model: ModelFile, tmp_path: Path) -> None:
    reader = written(model, plan_of(Block(1), Block(2)), tmp_path / "slice.gguf")
    source = tensors(gguf.GGUFReader(model.path))
    copies = tensors(reader)
    for name, tensor in copies.items():
        original = name.replace("blk.1.", "blk.2.").replace("blk.0.", "blk.1.")
        np.testing.assert_array_equal(tensor.data, source[original].data)
        assert tensor.tensor_type == source[original].tensor_type
    assert len(copies) == len(source) - len([name for name in source if name.startswith("blk.0.")])


def test_an_identity_block_adds_nothing(model: ModelFile, tmp_path: Path) -> None:
    copies = tensors(written(model, plan_of(Block(1, identity=True), Block(1)), tmp_path / "slice.gguf"))
    for part in ("attn_output.weight", "ffn_down.weight"):
        assert not copies[f"blk.0.{part}"].data.any()
        assert copies[f"blk.1.{part}"].data.any()
        assert copies[f"blk.0.{part}"].tensor_type == copies[f"blk.1.{part}"].tensor_type
    for part in ("attn_q.weight", "ffn_norm.weight"):
        np.testing.assert_array_equal(copies[f"blk.0.{part}"].data, copies[f"blk.1.{part}"].data)


def test_the_vocabulary_is_kept_or_replaced_as_planned(model: ModelFile, tmp_path: Path) -> None:
    source = tensors(gguf.GGUFReader(model.path))
    embedding, head = source["token_embd.weight"], source["output.weight"]

    stub = tensors(written(model, plan_of(Block(0), token_embd="stub", output="stub"), tmp_path / "stub"))
    np.testing.assert_array_equal(stub["token_embd.weight"].data, embedding.data[:32])
    np.testing.assert_array_equal(stub["output.weight"].data, head.data[:32])

    tied = tensors(written(model, plan_of(Block(0), token_embd="from_output", output="drop"), tmp_path / "t"))
    np.testing.assert_array_equal(tied["token_embd.weight"].data, head.data)
    assert "output.weight" not in tied

    zero = tensors(written(model, plan_of(Block(0), token_embd="zero"), tmp_path / "zero"))[
        "token_embd.weight"
    ]
    assert zero.shape.tolist() == [N_EMBD, N_VOCAB]
    assert zero.tensor_type is GGMLQuantizationType.Q4_0  # the smallest whose blocks fit rows of 32
    assert not zero.data.any()


def test_metadata_is_set_dropped_and_otherwise_copied(model: ModelFile, tmp_path: Path) -> None:
    plan = plan_of(
        Block(0),
        set_metadata={
            "llama.block_count": (1, GGUFValueType.UINT32),
            "llama.pattern": ([True, False], GGUFValueType.BOOL),
            "tokenizer.ggml.model": ("none", GGUFValueType.STRING),
        },
        drop_metadata=frozenset({"tokenizer.ggml.tokens"}),
    )
    fields = {
        key: field.contents()
        for key, field in written(model, plan, tmp_path / "slice.gguf").fields.items()
        if not key.startswith(("GGUF.", "skippy."))
    }
    expected = {key: model.metadata[key] for key in model.metadata}
    expected |= {"llama.block_count": 1, "llama.pattern": [True, False], "tokenizer.ggml.model": "none"}
    del expected["tokenizer.ggml.tokens"]
    assert fields == {k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()}


def test_empty_arrays_are_copied(model: ModelFile, tmp_path: Path) -> None:
    """llama.cpp's own saver writes them, and the `gguf` package's writer raises on them."""
    source = tmp_path / "source.gguf"
    metadata = {key: value.encoded for key, value in model.metadata.encoded.items()}
    metadata["llama.empty"] = encode_value([], GGUFValueType.FLOAT32)
    metadata["tokenizer.ggml.merges"] = encode_value([], GGUFValueType.STRING)
    with source.open("wb") as file:
        GgufContent(metadata, [copied(tensor, tensor.name) for tensor in model.tensors.values()]).write(file)
    path = tmp_path / "slice.gguf"
    with path.open("wb") as file:
        slice_content(ModelFile.open(source), plan_of(Block(0)), 0, 1).write(file)
    assert ModelFile.open(path).metadata["llama.empty"] == ()
    assert ModelFile.open(path).metadata["tokenizer.ggml.merges"] == ()


def test_a_slice_of_shards_equals_a_slice_of_the_whole(model: ModelFile, tmp_path: Path) -> None:
    write_small_model(tmp_path / "split.gguf", split_max_tensors=5)
    shards = ModelFile.open(min(tmp_path.glob("split-*.gguf")))
    one = ensure_slice(model, 1, 3, cache_dir=tmp_path / "one")
    many = ensure_slice(shards, 1, 3, cache_dir=tmp_path / "many")
    assert one.path.read_bytes() == many.path.read_bytes()


def test_a_slice_alone_says_what_it_is(model: ModelFile, tmp_path: Path) -> None:
    first = ensure_slice(model, 0, 2, cache_dir=tmp_path / "cache")
    last = ensure_slice(model, 2, 3, cache_dir=tmp_path / "cache")
    moved = last.path.rename(tmp_path / "stage.gguf")
    model.path.unlink()
    alone = open_slice(moved)
    assert (first.is_first, first.is_last) == (True, False)
    assert (alone.is_first, alone.is_last) == (False, True)
    assert (alone.first, alone.end, alone.n_layers, alone.n_embd) == (2, 3, N_LAYERS, N_EMBD)
    assert (alone.architecture, alone.model_name) == ("llama", "Small")
    assert alone.fingerprint == first.fingerprint == model.fingerprint
    assert alone.rules == last.rules
    assert alone.size == moved.stat().st_size
    assert not alone.whole


def test_the_whole_model_is_its_own_slice(model: ModelFile) -> None:
    whole = whole_model(model)
    assert whole.whole
    assert whole.path == model.path
    assert (whole.first, whole.end) == (0, N_LAYERS)
    assert whole.is_first
    assert whole.is_last
    assert whole.size == model.path.stat().st_size


def test_what_is_no_slice_is_refused(model: ModelFile) -> None:
    with pytest.raises(ModelFileError, match="not a slice"):
        open_slice(model.path)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("skippy.first_layer", "2", GGUFValueType.STRING),
        ("skippy.first_layer", [2], GGUFValueType.UINT32),
        ("skippy.first_layer", 3, GGUFValueType.UINT32),
        ("skippy.end_layer", 4, GGUFValueType.UINT32),
        ("skippy.rules", "{", GGUFValueType.STRING),
        ("skippy.rules", '{"no_such_rule": 1}', GGUFValueType.STRING),
    ],
)
def test_a_slice_that_contradicts_itself_is_refused(
    key: str, value: object, kind: GGUFValueType, model: ModelFile, tmp_path: Path
) -> None:
    good = ModelFile.open(ensure_slice(model, 2, 3, cache_dir=tmp_path / "cache").path)
    metadata = {name: entry.encoded for name, entry in good.metadata.encoded.items()}
    metadata[key] = encode_value(value, kind)
    path = tmp_path / "bad.gguf"
    with path.open("wb") as file:
        GgufContent(metadata, [copied(tensor, name) for name, tensor in good.tensors.items()]).write(file)
    with pytest.raises(ModelFileError, match="not a slice"):
        open_slice(path)


def test_a_range_out_of_bounds_is_refused(model: ModelFile, tmp_path: Path) -> None:
    for first, end in ((0, 4), (2, 2), (-1, 2), (3, 2)):
        with pytest.raises(UsageError):
            ensure_slice(model, first, end, cache_dir=tmp_path)
    assert not list(tmp_path.glob("slices/**/*.gguf"))


def test_a_layer_without_tensors_is_refused(model: ModelFile) -> None:
    with pytest.raises(ModelFileError, match="no tensor of layer 7"):
        slice_content(model, plan_of(Block(7)), 0, 1)


def test_progress_counts_bytes_to_the_end(model: ModelFile, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    cut = ensure_slice(model, 0, 2, cache_dir=tmp_path, progress=lambda *step: seen.append(step))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert {total for _, total in seen} == {cut.size}
    assert seen[-1] == (cut.size, cut.size)


PEAK_MEMORY = """
import resource, sys
from pathlib import Path
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice
model = ModelFile.open(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = ensure_slice(model, 1, 3, cache_dir=Path(sys.argv[2])).size
print(size >> 10, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_flat_while_a_large_tensor_is_copied(model: ModelFile, tmp_path: Path) -> None:
    """A slice of over 128 MiB is cut with less than 32 MiB more memory than before."""
    parts = [copied(tensor, name) for name, tensor in model.tensors.items() if name != "output.weight"]
    parts.append(zeros("output.weight", (N_EMBD, 1 << 22), GGMLQuantizationType.Q8_0))
    big = tmp_path / "big.gguf"
    with big.open("wb") as file:
        GgufContent({key: value.encoded for key, value in model.metadata.encoded.items()}, parts).write(file)
    command = [sys.executable, "-c", PEAK_MEMORY, str(big), str(tmp_path / "cache")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    size_kib, grown_kib = map(int, printed.split())
    assert size_kib > 128 * 1024
    assert grown_kib < 32 * 1024
