"""The header check accepts what llama.cpp accepts and refuses the rest by field, before it allocates."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.model.header import MAX_ARRAY_ITEMS, MAX_HEADER_BYTES, check_header
from tests.model.gguf_files import RawGguf, number_key, string, tensor_row, write_small_model

ARRAY = GGUFValueType.ARRAY
F32 = GGMLQuantizationType.F32


def array_key(key: str, kind: int, count: int, items: bytes) -> bytes:
    return string(key) + struct.pack("<IIQ", ARRAY, kind, count) + items


def typed_key(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


GOOD_TENSOR = tensor_row("a", (32, 2))
GOOD_DATA = bytes(256)

# (what is wrong, file, words that the error must have)
CRAFTED = [
    ("no GGUF", RawGguf(magic=b"GGML"), "magic"),
    ("version 1", RawGguf(version=1), "version"),
    ("future version", RawGguf(version=4), "version"),
    ("big-endian", RawGguf(version=3 << 24), "big-endian"),
    ("2^63 tensors", RawGguf(n_tensors=1 << 63), "tensor count"),
    ("2^64-1 tensors", RawGguf(n_tensors=(1 << 64) - 1), "tensor count"),
    ("more tensors than bytes", RawGguf(n_tensors=1000), "tensor count"),
    ("2^63 keys", RawGguf(n_keys=1 << 63), "key count"),
    ("more keys than bytes", RawGguf(n_keys=500), "key count"),
    ("key of 2^40 bytes", RawGguf(keys=[struct.pack("<Q", 1 << 40) + bytes(64)]), "key 0 length"),
    ("key of 2^64-1 bytes", RawGguf(keys=[struct.pack("<Q", (1 << 64) - 1) + bytes(64)]), "key 0 length"),
    ("key without a name", RawGguf(keys=[number_key("", 1)]), "key 0 length"),
    ("key that is no text", RawGguf(keys=[string(b"\xff\xfe") + struct.pack("<II", 4, 1)]), "key 0"),
    ("key twice", RawGguf(keys=[number_key("a.b", 1), number_key("a.b", 2)]), "'a.b'"),
    ("unknown type", RawGguf(keys=[typed_key("a.b", 13, bytes(8))]), "a.b type"),
    ("string of 2^40", RawGguf(keys=[typed_key("a.b", 8, struct.pack("<Q", 1 << 40))]), "a.b item 0"),
    ("string of 2^64-1", RawGguf(keys=[typed_key("a.b", 8, struct.pack("<Q", (1 << 64) - 1))]), "a.b item 0"),
    ("third item of an array", RawGguf(keys=[
        array_key("a.b", 8, 3, string("x") + string("yz") + struct.pack("<Q", 1 << 63))]), "a.b item 2"),
    ("array of 2^60", RawGguf(keys=[array_key("a.b", 4, 1 << 60, bytes(64))]), "a.b count"),
    ("array longer than the file", RawGguf(keys=[array_key("a.b", 4, 1000, bytes(64))]), "a.b count"),
    ("array over the limit", RawGguf(keys=[array_key("a.b", 0, MAX_ARRAY_ITEMS + 1, b"")]), "a.b count"),
    ("array of arrays", RawGguf(keys=[array_key("a.b", 9, 1, bytes(64))]), "a.b item type"),
    ("array of unknown", RawGguf(keys=[array_key("a.b", 99, 1, bytes(64))]), "a.b item type"),
    ("truth value 2", RawGguf(keys=[typed_key("a.b", 7, b"\x02")]), "a.b"),
    ("truth value 3 in an array", RawGguf(keys=[array_key("a.b", 7, 3, b"\x00\x01\x03")]), "a.b"),
    ("alignment 0", RawGguf(keys=[number_key("general.alignment", 0)]), "general.alignment"),
    ("alignment 33", RawGguf(keys=[number_key("general.alignment", 33)]), "general.alignment"),
    ("alignment 2^31", RawGguf(keys=[number_key("general.alignment", 1 << 31)]), "general.alignment"),
    ("signed alignment", RawGguf(keys=[number_key("general.alignment", 32, GGUFValueType.INT32)]),
        "general.alignment"),
    ("tensor twice", RawGguf(tensors=[GOOD_TENSOR, tensor_row("a", (32, 2), offset=256)],
        data=bytes(512)), "tensor 1 'a'"),
    ("tensor without a name", RawGguf(tensors=[tensor_row("", (32,))], data=GOOD_DATA), "tensor 0 length"),
    ("tensor name of 64", RawGguf(tensors=[tensor_row("n" * 64, (32,))], data=GOOD_DATA), "tensor 0 length"),
    ("no dimension", RawGguf(tensors=[tensor_row("a", ())], data=GOOD_DATA), "dimension count"),
    ("5 dimensions", RawGguf(tensors=[tensor_row("a", (1, 1, 1, 1, 1))], data=GOOD_DATA), "dimension count"),
    ("dimension 0", RawGguf(tensors=[tensor_row("a", (32, 0))], data=GOOD_DATA), "dimensions"),
    ("dimension 2^63", RawGguf(tensors=[tensor_row("a", (1 << 63,))], data=GOOD_DATA), "dimensions"),
    ("product overflows to 0", RawGguf(tensors=[tensor_row("a", (1 << 32, 1 << 32))], data=GOOD_DATA),
        "dimensions"),
    ("product overflows to 32", RawGguf(tensors=[tensor_row("a", (32, (1 << 59) + 1, 1 << 5))],
        data=GOOD_DATA), "dimensions"),
    ("bytes overflow", RawGguf(tensors=[tensor_row("a", (1 << 61,))], data=GOOD_DATA), "offset"),
    ("unknown tensor type", RawGguf(tensors=[tensor_row("a", (32,), 999)], data=GOOD_DATA), "type"),
    ("removed tensor type", RawGguf(tensors=[tensor_row("a", (32,), 31)], data=GOOD_DATA), "type"),
    ("half a block", RawGguf(tensors=[tensor_row("a", (33,), GGMLQuantizationType.Q8_0)], data=GOOD_DATA),
        "dimensions"),
    ("offset past the end", RawGguf(tensors=[tensor_row("a", (32, 2), offset=1 << 40)], data=GOOD_DATA),
        "tensor 0 'a' offset"),
    ("offset 2^64-1", RawGguf(tensors=[tensor_row("a", (32, 2), offset=(1 << 64) - 1)], data=GOOD_DATA),
        "tensor 0 'a' offset"),
    ("overlapping tensors", RawGguf(tensors=[GOOD_TENSOR, tensor_row("b", (32, 2), offset=32)],
        data=bytes(512)), "tensor 1 'b' offset"),
    ("data cut short", RawGguf(tensors=[GOOD_TENSOR], data=GOOD_DATA[:-1]), "truncated"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "words"), [case[1:] for case in CRAFTED], ids=[case[0] for case in CRAFTED])
def test_crafted_headers_are_refused_by_field_and_without_allocation(
    file: RawGguf, words: str, tmp_path: Path
) -> None:
    path = file.write(tmp_path / "crafted.gguf")
    tracemalloc.start()
    with pytest.raises(ModelFileError) as caught:
        check_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    text = str(caught.value)
    assert words in text
    assert str(path) in text
    assert "\n" not in text
    assert caught.value.hint
    assert peak < 1 << 20


def test_the_good_twin_of_the_crafted_headers_is_accepted(tmp_path: Path) -> None:
    keys = [number_key("a.b", 7), number_key("general.alignment", 64), array_key("a.none", 8, 0, b"")]
    header = check_header(
        RawGguf(keys=keys, tensors=[GOOD_TENSOR], data=bytes(32) + GOOD_DATA).write(tmp_path / "x")
    )
    assert header.metadata["a.b"].decode() == 7
    assert header.metadata["a.none"].decode() == ()
    assert header.alignment == 64
    assert header.data_offset % 64 == 0
    assert header.tensors[0].offset == header.data_offset


def test_every_truncation_of_a_model_is_refused(tmp_path: Path) -> None:
    whole = write_small_model(tmp_path / "whole.gguf").read_bytes()
    header = check_header(tmp_path / "whole.gguf")
    end = header.tensors[-1].offset + header.tensors[-1].n_bytes
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, header.data_offset, 7), header.data_offset, end - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            check_header(cut)
    cut.write_bytes(whole[:end])
    assert check_header(cut).tensors[-1].n_bytes == header.tensors[-1].n_bytes


def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    """A sparse file can claim any amount of metadata; the check looks at a bounded part of it."""
    path = RawGguf(keys=[typed_key("a.b", 8, struct.pack("<Q", MAX_HEADER_BYTES))]).write(
        tmp_path / "huge.gguf"
    )
    os.truncate(path, 1 << 40)
    with pytest.raises(ModelFileError, match="larger than 256 MiB"):
        check_header(path)


def test_values_and_tensors_are_those_that_ggufs_reader_finds(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = [
        (GGUFValueType.UINT8, 200), (GGUFValueType.INT8, -3), (GGUFValueType.UINT16, 60000),
        (GGUFValueType.INT16, -300), (GGUFValueType.UINT32, 4_000_000_000), (GGUFValueType.INT32, -70000),
        (GGUFValueType.UINT64, 1 << 63), (GGUFValueType.INT64, -(1 << 62)), (GGUFValueType.FLOAT32, 0.5),
        (GGUFValueType.FLOAT64, 0.1), (GGUFValueType.BOOL, True), (GGUFValueType.STRING, "naïve 日本"),
    ]  # fmt: skip
    for kind, value in scalars:
        writer.add_key_value(f"one.{kind.name}", value, kind)
        writer.add_key_value(f"many.{kind.name}", [value] * 3, ARRAY, kind)
    writer.add_tensor("t.f32", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("t.f16", np.zeros((2, 2, 64), dtype=np.float16))
    for kind in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q4_1, GGMLQuantizationType.MXFP4):
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        rows = np.zeros((5, 256 // block * block_bytes), dtype=np.uint8)
        writer.add_tensor(f"t.{kind.name}", rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header, expected = check_header(path), gguf.GGUFReader(path)
    assert set(header.metadata) == {key for key in expected.fields if not key.startswith("GGUF.")}
    for kind, value in scalars:
        assert header.metadata[f"one.{kind.name}"].decode() == value
        assert header.metadata[f"one.{kind.name}"].type is kind
        assert header.metadata[f"many.{kind.name}"].decode() == (value,) * 3
    ours = [(t.name, t.shape, t.type, t.n_bytes, t.offset) for t in header.tensors]
    theirs = [
        (t.name, tuple(map(int, t.shape)), t.tensor_type, t.n_bytes, t.data_offset) for t in expected.tensors
    ]
    assert ours == theirs


def test_text_that_is_not_utf8_survives(tmp_path: Path) -> None:
    raw = b"caf\xe9 \xf0\x9f"
    header = check_header(RawGguf(keys=[typed_key("a.b", 8, string(raw))]).write(tmp_path / "x.gguf"))
    assert header.metadata["a.b"].decode().encode("utf-8", "surrogateescape") == raw


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """A good file and the length of its header."""
    path = write_small_model(tmp_path_factory.mktemp("fuzz") / "small.gguf")
    return path.read_bytes(), check_header(path).data_offset


@settings(max_examples=800, deadline=None, database=None)
@given(data=st.data())
def test_mutated_headers_are_refused_or_read_but_never_crash(
    data: st.DataObject, small_model: tuple[bytes, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole, header_bytes = small_model
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4), label="mutations")):
        at = data.draw(st.integers(0, header_bytes), label="at")
        new = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([0, 1, 1 << 31, 1 << 32, 1 << 40, 1 << 63, (1 << 64) - 1]).map(
                    lambda number: struct.pack("<Q", number)
                ),
            ),
            label="bytes",
        )
        mutated[at : at + len(new)] = new
    if data.draw(st.booleans(), label="cut"):
        del mutated[data.draw(st.integers(1, len(mutated)), label="length") :]
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(mutated)
    try:
        header = check_header(path)
    except ModelFileError:
        return
    for value in header.metadata.values():
        value.decode()
    for tensor in header.tensors:
        assert 0 < tensor.offset <= tensor.offset + tensor.n_bytes <= len(mutated)


def test_what_is_no_file_is_said_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    text = tmp_path / "readme.gguf"
    text.write_text("not a model at all, but long enough to have a header")
    cases = {
        tmp_path / "missing.gguf": "does not exist",
        tmp_path: "is a directory",
        empty: "is empty",
        pipe: "not a regular file",
        text: "not a GGUF file",
        text / "below": "cannot be read",
    }
    for path, words in cases.items():
        with pytest.raises(ModelFileError, match=words) as caught:
            check_header(path)
        assert str(path) in str(caught.value)
        assert caught.value.hint


def test_an_unreadable_file_is_said_in_one_line(tmp_path: Path) -> None:
    path = write_small_model(tmp_path / "secret.gguf")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")
    with pytest.raises(ModelFileError, match="cannot be read"):
        check_header(path)
