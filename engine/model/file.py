"""A GGUF model as one thing, in one file or in many shards.

Shards are named `NAME-00001-of-0000N.gguf`; the first one holds the metadata and may hold no tensor at all.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from engine.errors import ModelFileError
from engine.model.header import Header, MetadataValue, TensorInfo, check_header

MAX_SHARDS = 4096
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_SPLIT_COUNT = "split.count"
_SPLIT_NUMBER = "split.no"
_SPLIT_TENSORS = "split.tensors.count"


class Metadata(Mapping[str, Any]):
    """Metadata in plain Python values, decoded when first asked for (arrays as tuples)."""

    def __init__(self, encoded: Mapping[str, MetadataValue]) -> None:
        self.encoded = encoded
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            self._decoded[key] = self.encoded[key].decode()
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self.encoded

    def __iter__(self) -> Iterator[str]:
        return iter(self.encoded)

    def __len__(self) -> int:
        return len(self.encoded)


class ModelFile:
    """An opened model: checked headers, metadata, and where each tensor's bytes are.

    `metadata_types` gives the type of each value and, for an array, the type of its items.
    """

    def __init__(self, headers: Sequence[Header]) -> None:
        first = headers[0]
        self.path = first.path
        self.paths = tuple(header.path for header in headers)
        self.metadata = Metadata(first.metadata)
        self.metadata_types: Mapping[str, GGUFValueType] = {k: v.type for k, v in first.metadata.items()}
        self.tensors: Mapping[str, TensorInfo] = _merge_tensors(headers)
        self.architecture = self._text("general.architecture")
        name = self.metadata.get("general.name")
        self.name = name if isinstance(name, str) and name else _stem(self.path)
        self.n_nextn = self._number("nextn_predict_layers", 0)
        self.n_layers = self._number("block_count") - self.n_nextn  # without NextN blocks
        self.n_embd = self._number("embedding_length")
        self.context_length = self._number("context_length", 0)
        if self.n_layers < 1:
            raise self._bad_key("block_count", "counts no layer besides the NextN blocks")
        self._maps: dict[Path, NDArray[np.uint8]] = {}

    @classmethod
    def open(cls, path: Path) -> ModelFile:
        """Open a model by its only file or by any of its shards.

        Raises ModelFileError for a missing shard, a bad header, or a GGUF that is no language model.
        """
        header = check_header(path)
        count = _split_value(header, _SPLIT_COUNT, 1)
        if count <= 1:
            return cls([header])
        return cls(_open_shards(header, count))

    @property
    def source(self) -> Path:
        """What another process opens to get this model."""
        return self.path

    def key(self, name: str, default: Any = None) -> Any:
        """The architecture's own key: `key("block_count")` is `llama.block_count` of a llama model."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    @cached_property
    def n_vocab(self) -> int:
        """Rows of the token embedding, which may be padded beyond the tokens that have a text."""
        embedding = self.tensors.get("token_embd.weight")
        if embedding is not None and len(embedding.shape) == 2:
            return embedding.shape[1]
        return self._number("vocab_size", 0)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the model: a hash of its metadata and tensor table (not of the tensors' data).

        Neither the order of keys and tensors nor the cut into shards changes it.
        """
        digest = hashlib.sha256()
        for key in sorted(self.metadata):
            if not key.startswith("split."):
                _update(digest, key.encode("utf-8"))
                _update(digest, self.metadata.encoded[key].encoded)
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            _update(digest, name.encode("utf-8"))
            _update(digest, struct.pack(f"<{len(tensor.shape) + 1}Q", tensor.type, *tensor.shape))
        return digest.hexdigest()[:32]

    def data(self, tensor_name: str) -> NDArray[np.uint8]:
        """The raw bytes of a tensor, memory-mapped."""
        tensor = self.tensors[tensor_name]
        mapped = self._maps.get(tensor.file)
        if mapped is None:
            mapped = self._maps[tensor.file] = np.memmap(tensor.file, dtype=np.uint8, mode="r")
        return mapped[tensor.offset : tensor.offset + tensor.n_bytes]

    def rows(self, tensor_name: str, indices: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Raw rows of a matrix, a copy of shape (len(indices), bytes of a row)."""
        matrix = self.data(tensor_name).reshape(-1, self.tensors[tensor_name].row_bytes)
        return np.asarray(matrix[np.asarray(indices, dtype=np.intp)])

    def _text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str) or not value:
            raise ModelFileError(f"{self.path}: {key}: missing or not a text", hint="give a language model")
        return value

    def _number(self, name: str, default: int | None = None) -> int:
        value = self.key(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            problem = "is missing" if value is None else f"{value!r} is not a number from 0 to 2^31"
            raise self._bad_key(name, problem)
        return value

    def _bad_key(self, name: str, problem: str) -> ModelFileError:
        hint = "give a language model in GGUF format"
        return ModelFileError(f"{self.path}: {self.architecture}.{name}: {problem}", hint=hint)


def _update(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _stem(path: Path) -> str:
    match = _SHARD_NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


def _split_value(header: Header, key: str, default: int) -> int:
    encoded = header.metadata.get(key)
    value = default if encoded is None else encoded.decode()
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(f"{header.path}: {key}: {value!r} is not a number", hint="get the file again")
    return value


def _open_shards(opened: Header, count: int) -> list[Header]:
    """The checked headers of all shards, in order; `opened` is one of them."""
    match = _SHARD_NAME.fullmatch(opened.path.name)
    if match is None or int(match["count"]) != count or count > MAX_SHARDS:
        raise ModelFileError(
            f"{opened.path} is one of {count} shards but is not named like one",
            hint=f"give every shard its name back: MODEL-00001-of-{count:05d}.gguf and so on",
        )
    headers = []
    for number in range(count):
        path = opened.path.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf")
        if not path.exists():
            hint = f"put all {count} shards into one directory"
            raise ModelFileError(f"shard {path} is missing", hint=hint)
        header = opened if path == opened.path else check_header(path)
        if _split_value(header, _SPLIT_NUMBER, number) != number:
            raise ModelFileError(f"{path}: {_SPLIT_NUMBER}: is not {number}", hint="get the shard again")
        headers.append(header)
    return headers


def _merge_tensors(headers: Sequence[Header]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise ModelFileError(
                    f"{header.path}: tensor '{tensor.name}' is also in {tensors[tensor.name].file.name}",
                    hint="the shards do not belong together: get them again",
                )
            tensors[tensor.name] = tensor
    stated = _split_value(headers[0], _SPLIT_TENSORS, len(tensors)) if len(headers) > 1 else len(tensors)
    if stated != len(tensors):
        raise ModelFileError(
            f"{headers[0].path}: {_SPLIT_TENSORS}: {stated}, but the shards hold {len(tensors)} tensors",
            hint="the shards do not belong together: get them again",
        )
    return tensors
