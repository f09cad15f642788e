"""The token embedding, looked up row by row in the memory-mapped model file.

Rows are converted by ggml's own function for the type, the one that llama.cpp's `get_rows` calls: the same
bits on every platform, for every type, at a few microseconds a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.compute.bindings import bindings
from engine.errors import BackendError, ModelFileError, ProtocolError

if TYPE_CHECKING:
    from engine.model.file import ModelFile

_TENSOR = "token_embd.weight"


class TypeTraits(ctypes.Structure):
    """`ggml_type_traits`: what ggml knows about one tensor type."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )


class EmbeddingTable:
    """Rows of `token_embd.weight` of a model, times `scale`."""

    def __init__(self, model: ModelFile, scale: float = 1.0) -> None:
        if _TENSOR not in model.tensors:
            raise ModelFileError(f"{model.path} has no {_TENSOR}, which the first stage needs")
        tensor = model.tensors[_TENSOR]
        self.n_embd, self.n_vocab = tensor.shape
        self._scale = np.float32(scale)
        self._row_bytes = tensor.row_bytes
        self._data = model.data(_TENSOR)  # keeps the file mapped
        self._address = self._data.ctypes.data
        self._to_float = _to_float(int(tensor.type), tensor.row_bytes, self.n_embd)

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Embedding rows of token ids, float32 (n, n_embd). Raises ProtocolError outside the vocabulary."""
        check_tokens(tokens, self.n_vocab)
        rows = np.empty((len(tokens), self.n_embd), dtype=np.float32)
        out, step = rows.ctypes.data, rows.strides[0]
        for index, token in enumerate(tokens):
            self._to_float(self._address + token * self._row_bytes, out + index * step, self.n_embd)
        if self._scale != 1:
            rows *= self._scale
        return rows


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Raise ProtocolError unless every id is one of the vocabulary."""
    if tokens and (min(tokens) < 0 or max(tokens) >= n_vocab):
        outside = next(token for token in tokens if not 0 <= token < n_vocab)
        raise ProtocolError(f"token id {outside} is outside the vocabulary of {n_vocab}")


def _to_float(kind: int, row_bytes: int, n_embd: int) -> Any:
    """ggml's conversion (from address, to address, values) of a tensor type; float32 is copied."""
    address = bindings().ggml_get_type_traits(kind)
    traits = TypeTraits.from_address(address)
    if traits.block_size <= 0 or traits.type_size * n_embd != row_bytes * traits.block_size:
        raise BackendError(f"llama.cpp and gguf do not agree on tensor type {kind}")
    if traits.type_name == b"f32":
        return lambda source, target, _values: ctypes.memmove(target, source, row_bytes)
    if not traits.to_float:
        raise ModelFileError(f"{_TENSOR} has type {traits.type_name.decode()}, which ggml cannot convert")
    return traits.to_float
