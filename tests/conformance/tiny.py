"""Tiny random models of any architecture.

llama.cpp itself says which tensors a model of given metadata has (`llama_model_init_from_user`), optional
ones included. The file is then written from scratch with only the keys that the converter writes for that
architecture: a file that llama.cpp saves states every resolved value, the sliding-window pattern among them,
and a slicer that forgets to rebase one would pass on it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[int, ...]]
"""Tensor shapes by name, in ggml's order."""


def unchanged(shapes: Shapes) -> Shapes:
    return shapes


@dataclass(frozen=True)
class TinyModel:
    """A model to be made: its metadata without the architecture's prefix, and what differs from the default.

    Attributes:
        tied: there is no `output.weight`.
        edit: changes the tensors that llama.cpp would accept into those that the converter writes.
        quantized: type of all matrices whose rows it fits.
    """

    name: str
    architecture: str
    keys: Mapping[str, Any]
    tied: bool = False
    edit: Callable[[Shapes], Shapes] = unchanged
    quantized: gguf.GGMLQuantizationType | None = None

    def write(self, path: Path) -> None:
        """Write the model. Needs llama.cpp, which may abort on metadata that it does not expect."""
        shapes = tensor_shapes(self, path.with_suffix(".meta"))
        if self.tied:
            shapes = without(r"output\.(weight|bias)")(shapes)
        writer = self._writer(path)
        for name, data in random_tensors(self.edit(shapes)):
            kind = self._type_of(name, data)
            if kind is None:
                writer.add_tensor(name, data)
            else:
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        _finish(writer)

    def write_metadata(self, path: Path) -> None:
        _finish(self._writer(path))

    def _writer(self, path: Path) -> gguf.GGUFWriter:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_name(self.name)
        writer.add_string("tokenizer.ggml.model", "none")
        for key, value in self.keys.items():
            _add(writer, f"{self.architecture}.{key}", value)
        return writer

    def _type_of(self, name: str, data: NDArray[np.float32]) -> gguf.GGMLQuantizationType | None:
        if self.quantized is None or data.ndim < 2 or not name.endswith(".weight") or "ffn_gate_inp" in name:
            return None
        fits = data.shape[-1] % gguf.GGML_QUANT_SIZES[self.quantized][0] == 0
        return self.quantized if fits else None


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def random_tensors(shapes: Shapes) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Random data by name, in numpy's (reversed) order of dimensions."""
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        data = rng.standard_normal(shape[::-1], dtype=np.float32) * np.float32(0.15)
        if "norm" in name:
            data = 1 + data / 2
        elif name.startswith("rope_f"):
            data = 1 + np.abs(data) * 10
        elif name.endswith("ssm_a"):  # the state must decay
            data = -0.5 - np.abs(data)
        yield name, data


class _GgmlTensor(ctypes.Structure):
    """The head of `ggml_tensor`."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def tensor_shapes(model: TinyModel, scratch: Path) -> Shapes:
    """Ask llama.cpp for the tensors of a model with this metadata."""
    import llama_cpp

    from engine.compute.bindings import bindings

    bindings()  # initialises llama.cpp and takes its log
    library = llama_cpp.llama_cpp._lib
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = (ctypes.c_char_p, _InitParams)
    library.ggml_get_name.restype = ctypes.c_char_p
    model.write_metadata(scratch)
    metadata = library.gguf_init_from_file(str(scratch).encode(), _InitParams(True, None))
    shapes: Shapes = {}

    def see(tensor: int, _user_data: int) -> None:
        ne = list(_GgmlTensor.from_address(tensor).ne)
        while len(ne) > 1 and ne[-1] == 1:
            ne.pop()
        name = library.ggml_get_name(ctypes.c_void_p(tensor)).decode()
        if not name.endswith("scale"):  # only NVFP4 files have them
            shapes[name] = tuple(ne)

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(see)
    function = library.llama_model_init_from_user
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, type(callback), ctypes.c_void_p, llama_cpp.llama_model_params)
    parameters = llama_cpp.llama_model_default_params()
    parameters.load_mtp = True
    handle = function(metadata, callback, None, parameters)
    if not handle:
        raise ValueError(f"llama.cpp makes no {model.architecture} model of these keys: {model.name}")
    llama_cpp.llama_model_free(ctypes.c_void_p(handle))
    return shapes


def without(pattern: str) -> Callable[[Shapes], Shapes]:
    """Leave out the tensors whose name matches."""

    def edit(shapes: Shapes) -> Shapes:
        return {name: shape for name, shape in shapes.items() if not re.fullmatch(pattern, name)}

    return edit


def fused_qkv(shapes: Shapes) -> Shapes:
    """Queries, keys and values of each block in one matrix, as some converters write them."""
    edited: Shapes = {}
    for name, shape in shapes.items():
        match = re.fullmatch(r"(blk\.\d+\.attn_)([qkv])\.(weight|bias)", name)
        if match is None:
            edited[name] = shape
        else:
            fused = f"{match[1]}qkv.{match[3]}"
            rows = edited[fused][-1] if fused in edited else 0
            edited[fused] = (*shape[:-1], rows + shape[-1])
    return edited
