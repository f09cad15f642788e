"""Our own check of a GGUF header, before llama.cpp sees the file.

A GGUF file begins with counts, lengths, dimensions and offsets that a parser must not believe. This one maps
at most `MAX_HEADER_BYTES`, walks the header once, compares every number with what is left of the file, and
allocates only what it has seen to be there. Arrays stay encoded until somebody asks for them, so that a
vocabulary of 256k tokens costs a walk over its lengths and no more.

The layout (little endian; a string is a u64 length and its bytes), from ggml's docs/gguf.md and gguf.cpp:

    "GGUF"  u32 version  u64 n_tensors  u64 n_keys
    n_keys    x { string key, u32 type, value }              value of an array: u32 type, u64 count, items
    n_tensors x { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset }
    padding to the alignment, then the tensors' data; offsets count from there
"""

from __future__ import annotations

import mmap
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

# Hard limits. Real files: 16 MB of header, 100 keys, 2,000 tensors, 262,144 array items.
MAX_HEADER_BYTES = 1 << 28
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ARRAY_ITEMS = 1 << 24
MAX_KEY_BYTES = (1 << 16) - 1  # of the GGUF specification
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME less the terminator
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_ALIGNMENT = 1 << 16
MAX_ELEMENTS = (1 << 63) - 1

SCALAR_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_SCALAR_BYTES = {kind: struct.calcsize("<" + code) for kind, code in SCALAR_FORMATS.items()}
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # shortest encoding of a key and its value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # shortest encoding of one row of the tensor table
_DAMAGED = "the file is damaged or was made to do harm: get it again from where it came from"

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """One metadata value, checked but still encoded.

    `type` is the type of the value or, of an array, of its items. `encoded` is the value as it stands in the
    file, from its type field on, so that it can be copied without being understood.
    """

    type: GGUFValueType
    is_array: bool
    count: int
    encoded: bytes

    def decode(self) -> Any:
        """The value in plain Python; arrays are tuples. Bytes that are no UTF-8 survive as surrogates."""
        start = 16 if self.is_array else 4
        if self.type is GGUFValueType.STRING:
            strings = _decode_strings(self.encoded, start, self.count)
            return tuple(strings) if self.is_array else strings[0]
        values = struct.unpack_from(f"<{self.count}{SCALAR_FORMATS[self.type]}", self.encoded, start)
        return values if self.is_array else values[0]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table. `shape` is in ggml's order (ne[0] is the length of a row)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    n_bytes: int
    file: Path
    offset: int  # bytes from the beginning of the file

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.shape[0], self.type)


@dataclass(frozen=True, slots=True)
class Header:
    """The checked header of one GGUF file."""

    path: Path
    version: int
    metadata: dict[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    alignment: int
    file_size: int


def row_bytes(elements: int, kind: GGMLQuantizationType) -> int:
    """Bytes of a row of `elements` values, a whole number of blocks."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return int(elements // block * block_bytes)


def tensor_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """Bytes of a tensor of this shape (in ggml's order)."""
    return prod(shape[1:]) * row_bytes(shape[0], kind)


def padded(n_bytes: int, alignment: int) -> int:
    """`n_bytes` rounded up to the alignment (a power of two)."""
    return (n_bytes + alignment - 1) & -alignment


def check_header(path: Path) -> Header:
    """Read and check the header of `path`.

    Raises ModelFileError, naming the file and the field, for anything llama.cpp would choke on and for
    everything that is not a readable regular GGUF file.
    """
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise ModelFileError(f"{path} is a directory", hint="give the .gguf file inside it")
        if not stat.S_ISREG(info.st_mode):
            raise ModelFileError(f"{path} is not a regular file", hint="give a .gguf file")
        if info.st_size == 0:
            raise ModelFileError(f"{path} is empty", hint="the download failed: get the file again")
        with path.open("rb") as file:
            mapped = min(info.st_size, MAX_HEADER_BYTES)
            with mmap.mmap(file.fileno(), mapped, access=mmap.ACCESS_READ) as buffer:
                return _Walk(path, buffer, info.st_size).header()
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist", hint="check the path of the model") from None
    except PermissionError:
        raise ModelFileError(f"{path} cannot be read", hint="check its permissions") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelFileError(f"{path} cannot be read: {reason}", hint="check the path and the disk") from None


def _decode_strings(data: bytes, position: int, count: int) -> list[str]:
    strings = []
    for _ in range(count):
        (length,) = _u64(data, position)
        position += 8 + length
        strings.append(data[position - length : position].decode("utf-8", "surrogateescape"))
    return strings


class _Walk:
    """One pass over a header. Every method that moves checks first that the bytes are there."""

    def __init__(self, path: Path, buffer: mmap.mmap, file_size: int) -> None:
        self.path = path
        self.buffer = buffer
        self.end = len(buffer)
        self.file_size = file_size
        self.position = 0

    def header(self) -> Header:
        version, n_tensors, n_keys = self.preamble()
        metadata: dict[str, MetadataValue] = {}
        for index in range(n_keys):
            key = self.name(f"key {index}", MAX_KEY_BYTES)
            if key in metadata:
                self.fail(f"key {index}", f"'{key}' stands there twice")
            metadata[key] = self.value(key)
        alignment = self.alignment(metadata)
        rows = self.tensor_table(n_tensors)
        data_offset = padded(self.position, alignment)
        tensors = self.place(rows, data_offset, alignment)
        return Header(self.path, version, metadata, tensors, data_offset, alignment, self.file_size)

    # -- reading -----------------------------------------------------------------------------------------

    def fail(self, field: str, problem: str, hint: str = _DAMAGED) -> NoReturn:
        raise ModelFileError(f"{self.path}: {field}: {problem}", hint=hint)

    def need(self, n_bytes: int, field: str) -> int:
        """Move over `n_bytes` and return where they begin."""
        start = self.position
        if n_bytes > self.end - start:
            if self.end < self.file_size:
                self.fail(field, f"the header is larger than {MAX_HEADER_BYTES >> 20} MiB")
            self.fail(field, f"needs {n_bytes} bytes, but only {self.end - start} are left of the file")
        self.position = start + n_bytes
        return start

    def u32(self, field: str) -> int:
        start = self.need(4, field)
        return int(_u32(self.buffer, start)[0])

    def u64(self, field: str) -> int:
        start = self.need(8, field)
        return int(_u64(self.buffer, start)[0])

    def count(self, field: str, limit: int, item_bytes: int) -> int:
        """A number of things that must be allowed and must fit in what is left."""
        number = self.u64(field)
        if number > limit:
            self.fail(field, f"{number} is more than the {limit} allowed")
        left = self.file_size - self.position
        if number * item_bytes > left:
            self.fail(field, f"{number} do not fit in the {left} bytes that are left of the file")
        return number

    def name(self, field: str, limit: int) -> str:
        length = self.u64(f"{field} length")
        if not 0 < length <= limit:
            self.fail(f"{field} length", f"{length} is not between 1 and {limit}")
        start = self.need(length, field)
        try:
            return self.buffer[start : self.position].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, "its name is not UTF-8")

    # -- parts of the header -----------------------------------------------------------------------------

    def preamble(self) -> tuple[int, int, int]:
        magic = self.buffer[self.need(4, "magic") : 4]
        if magic != MAGIC:
            self.fail("magic", f"{magic!r} instead of {MAGIC!r}: not a GGUF file", "give a .gguf file")
        version = self.u32("version")
        if version & 0xFFFF == 0:
            self.fail("version", "the file is big-endian", "get the little-endian file")
        if version not in VERSIONS:
            self.fail("version", f"{version} is not supported (2 and 3 are)", "convert the model again")
        n_tensors = self.count("tensor count", MAX_TENSORS, _MIN_TENSOR_BYTES)
        n_keys = self.count("key count", MAX_KEYS, _MIN_KEY_BYTES)
        return version, n_tensors, n_keys

    def value(self, key: str) -> MetadataValue:
        start = self.position
        kind = self.value_type(key)
        is_array = kind is GGUFValueType.ARRAY
        count = 1
        if is_array:
            kind = self.value_type(f"{key} item")
            if kind is GGUFValueType.ARRAY:
                self.fail(f"{key} item type", "an array of arrays is not allowed")
            count = self.count(f"{key} count", MAX_ARRAY_ITEMS, _SCALAR_BYTES.get(kind, 8))
        if kind is GGUFValueType.STRING:
            self.skip_strings(key, count)
        else:
            first = self.need(count * _SCALAR_BYTES[kind], key)
            if kind is GGUFValueType.BOOL and self.buffer[first : self.position].strip(b"\x00\x01"):
                self.fail(key, "a truth value is neither 0 nor 1")
        return MetadataValue(kind, is_array, count, self.buffer[start : self.position])

    def value_type(self, field: str) -> GGUFValueType:
        number = self.u32(f"{field} type")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.fail(f"{field} type", f"{number} is not a GGUF value type")

    def skip_strings(self, key: str, count: int) -> None:
        """Move over `count` strings: the hot loop of opening a model (100k to 800k strings)."""
        buffer, position = self.buffer, self.position
        try:
            for _ in range(count):
                position += 8 + _u64(buffer, position)[0]
        except (struct.error, OverflowError):  # a length leads out of the buffer
            position = self.end + 1
        if position <= self.end:
            self.position = position
        else:
            self.refuse_strings(key, count)

    def refuse_strings(self, key: str, count: int) -> None:
        """Name the string that does not fit, by walking with care."""
        for index in range(count):
            self.need(self.u64(f"{key} item {index} length"), f"{key} item {index}")

    def alignment(self, metadata: dict[str, MetadataValue]) -> int:
        value = metadata.get(ALIGNMENT_KEY)
        if value is None:
            return DEFAULT_ALIGNMENT
        if value.type is not GGUFValueType.UINT32 or value.is_array:
            self.fail(ALIGNMENT_KEY, "is not a 32-bit number")
        alignment = int(value.decode())
        if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self.fail(ALIGNMENT_KEY, f"{alignment} is not a power of two up to {MAX_ALIGNMENT}")
        return alignment

    def tensor_table(self, n_tensors: int) -> list[TensorInfo]:
        """The rows of the table, with offsets as the file states them (from the beginning of the data)."""
        rows = []
        seen: set[str] = set()
        for index in range(n_tensors):
            name = self.name(f"tensor {index}", MAX_TENSOR_NAME_BYTES)
            field = f"tensor {index} '{name}'"
            if name in seen:
                self.fail(field, "stands there twice")
            seen.add(name)
            shape = self.shape(field)
            kind = self.tensor_type(field, shape)
            n_bytes = tensor_bytes(shape, kind)
            rows.append(TensorInfo(name, shape, kind, n_bytes, self.path, self.u64(f"{field} offset")))
        return rows

    def shape(self, field: str) -> tuple[int, ...]:
        n_dims = self.u32(f"{field} dimension count")
        if not 0 < n_dims <= MAX_DIMENSIONS:
            self.fail(f"{field} dimension count", f"{n_dims} is not between 1 and {MAX_DIMENSIONS}")
        start = self.need(8 * n_dims, f"{field} dimensions")
        shape = struct.unpack_from(f"<{n_dims}Q", self.buffer, start)
        if 0 in shape or prod(shape) > MAX_ELEMENTS:
            sizes = " x ".join(map(str, shape))
            self.fail(f"{field} dimensions", f"{sizes} elements are none or more than can be counted")
        return shape

    def tensor_type(self, field: str, shape: tuple[int, ...]) -> GGMLQuantizationType:
        number = self.u32(f"{field} type")
        try:
            kind = GGMLQuantizationType(number)
            block, _ = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            self.fail(f"{field} type", f"{number} is no known tensor type", "use another quantisation")
        if shape[0] % block:
            self.fail(f"{field} dimensions", f"{shape[0]} is no multiple of {kind.name}'s block of {block}")
        return kind

    def place(self, rows: list[TensorInfo], data_offset: int, alignment: int) -> tuple[TensorInfo, ...]:
        """Check the offsets and make them absolute. llama.cpp wants the data without gaps, in table order."""
        tensors = []
        expected = 0
        for index, row in enumerate(rows):
            field = f"tensor {index} '{row.name}' offset"
            if row.offset != expected:
                self.fail(field, f"{row.offset} instead of {expected}")
            start = data_offset + row.offset
            end = start + row.n_bytes
            if end > self.file_size:
                problem = f"the data reach byte {end}, past the end of the file ({self.file_size})"
                self.fail(field, problem, "the file is truncated: get it again")
            tensors.append(TensorInfo(row.name, row.shape, row.type, row.n_bytes, row.file, start))
            expected += padded(row.n_bytes, alignment)
        return tuple(tensors)
