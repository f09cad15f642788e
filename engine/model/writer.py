"""Writing a GGUF file with flat memory: tensors are streamed as raw bytes, metadata is copied encoded.

The `gguf` package's writer would decode and encode every value again, refuses empty arrays, and wants each
tensor as an array in memory. Here a value that does not change is copied as it stands in the source.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from gguf import GGMLQuantizationType, GGUFValueType

from engine.errors import ModelFileError
from engine.model.header import DEFAULT_ALIGNMENT, MAGIC, SCALAR_FORMATS, TensorInfo, padded, tensor_bytes

VERSION = 3
CHUNK_BYTES = 4 << 20

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

Chunks = Callable[[], Iterator[memoryview]]


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor to be written; `shape` is in ggml's order, `chunks` yields its bytes when it is its turn."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Chunks

    @property
    def n_bytes(self) -> int:
        return tensor_bytes(self.shape, self.type)


@dataclass(frozen=True, slots=True)
class GgufContent:
    """What a GGUF file is to hold: encoded metadata values by key, and tensors in order."""

    metadata: Mapping[str, bytes]
    tensors: Sequence[OutputTensor]

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return len(self.header()) + sum(padded(tensor.n_bytes, DEFAULT_ALIGNMENT) for tensor in self.tensors)

    def write(self, file: BinaryIO, progress: Progress | None = None) -> str:
        """Write the file and return its SHA-256 in hex. OSErrors of `file` are the caller's."""
        sink = _Sink(file, self.n_bytes, progress)
        for piece in self.pieces():
            sink.write(piece)
        return sink.digest.hexdigest()

    def pieces(self, start: int = 0) -> Iterator[memoryview]:
        """The bytes of the file from `start` on, each piece good until the next one is asked for."""
        header = self.header()
        if start < len(header):
            yield memoryview(header)[start:]
        begin = len(header)
        for tensor in self.tensors:
            end = begin + padded(tensor.n_bytes, DEFAULT_ALIGNMENT)
            if start < end:
                yield from _without(start - begin, _padded_pieces(tensor))
            begin = end

    def header(self) -> bytes:
        """What stands before the tensors' data."""
        header = bytearray(MAGIC)
        header += struct.pack("<IQQ", VERSION, len(self.tensors), len(self.metadata))
        for key, encoded in self.metadata.items():
            header += _string(key) + encoded
        offset = 0
        for tensor in self.tensors:
            n_dims = len(tensor.shape)
            header += _string(tensor.name)
            header += struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, tensor.type, offset)
            offset += padded(tensor.n_bytes, DEFAULT_ALIGNMENT)
        header += bytes(padded(len(header), DEFAULT_ALIGNMENT) - len(header))
        return bytes(header)


def _padded_pieces(tensor: OutputTensor) -> Iterator[memoryview]:
    written = 0
    for chunk in tensor.chunks():
        yield chunk
        written += len(chunk)
    if written != tensor.n_bytes:
        raise ValueError(f"{tensor.name}: {written} bytes given instead of {tensor.n_bytes}")
    yield memoryview(bytes(padded(written, DEFAULT_ALIGNMENT) - written))


def _without(skip: int, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """All but the first `skip` bytes."""
    for piece in pieces:
        yield piece[max(0, skip) :]
        skip -= len(piece)


class _Sink:
    """A file that is hashed and counted while it is written."""

    def __init__(self, file: BinaryIO, total: int, progress: Progress | None) -> None:
        self.file = file
        self.total = total
        self.progress = progress
        self.done = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        if not data:
            return
        self.file.write(data)
        self.digest.update(data)
        self.done += len(data)
        if self.progress is not None:
            self.progress(self.done, self.total)


def encode_value(value: Any, kind: GGUFValueType) -> bytes:
    """A metadata value as it stands in a file, from its type on; a list or tuple is of items of `kind`."""
    if isinstance(value, list | tuple):
        head = struct.pack("<IIQ", GGUFValueType.ARRAY, kind, len(value))
        if kind is GGUFValueType.STRING:
            return head + b"".join(map(_string, value))
        return head + struct.pack(f"<{len(value)}{SCALAR_FORMATS[kind]}", *value)
    head = struct.pack("<I", kind)
    if kind is GGUFValueType.STRING:
        return head + _string(value)
    return head + struct.pack(f"<{SCALAR_FORMATS[kind]}", value)


def copied(tensor: TensorInfo, name: str, rows: int | None = None) -> OutputTensor:
    """`tensor` under another name, byte by byte; with `rows`, only that many along its last dimension."""
    shape = tensor.shape if rows is None else (*tensor.shape[:-1], rows)
    return OutputTensor(name, shape, tensor.type, partial(_read, tensor, tensor_bytes(shape, tensor.type)))


def zeros(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> OutputTensor:
    """A tensor of zeros: in every ggml type a block of zero bytes stands for zeros."""
    return OutputTensor(name, shape, kind, partial(_zeros, tensor_bytes(shape, kind)))


def in_memory(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, data: bytes) -> OutputTensor:
    """A tensor whose bytes are at hand."""
    return OutputTensor(name, shape, kind, lambda: iter([memoryview(data)]))


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _read(tensor: TensorInfo, n_bytes: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(n_bytes, CHUNK_BYTES)))
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        while n_bytes:
            read = file.readinto(buffer[: min(n_bytes, CHUNK_BYTES)])
            if not read:
                raise ModelFileError(f"{tensor.file} ended inside '{tensor.name}'", hint="get the file again")
            n_bytes -= read
            yield buffer[:read]


def _zeros(n_bytes: int) -> Iterator[memoryview]:
    buffer = memoryview(bytes(min(n_bytes, CHUNK_BYTES)))
    for start in range(0, n_bytes, CHUNK_BYTES):
        yield buffer[: n_bytes - start]
