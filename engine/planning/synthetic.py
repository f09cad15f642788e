"""A model to be timed without its weights: its header travels, and random weights stand in for the real ones.

How long a layer takes depends on the shapes and types of its weights and not on their values. So a machine
that has never seen the model can say how fast it would be, before anybody sends it a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from engine.errors import CacheError, ModelFileError, UsageError
from engine.model.cache import free_bytes
from engine.model.file import ModelFile
from engine.model.header import ALIGNMENT_KEY
from engine.model.rebase import plan_slice
from engine.model.slices import SliceFile, open_slice, slice_content
from engine.model.writer import CHUNK_BYTES, GgufContent, OutputTensor, copied, encode_value
from engine.planning.describe import block_of, layer_bytes

_TIMED_BYTES = 1 << 28  # of the layers that are timed together
_LARGEST_BYTES = 1 << 36  # of all tensors that a header may ask for
_FINGERPRINT = "skippy.timed_fingerprint"
_SPAN = "skippy.timed_span"
_PATTERN_BYTES = 1 << 16  # of random data, repeated
_MOST = 0.25  # largest random weight: the products of many matrices stay finite
_FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model without weights. `few` are layers in its middle; of them the first is also timed alone, and so
    is the model's last layer, with the head."""

    model: ModelFile
    fingerprint: str  # of the model with weights
    few: Span

    @property
    def one(self) -> Span:
        return self.few[0], self.few[0] + 1

    @property
    def last(self) -> Span:
        return self.model.n_layers - 1, self.model.n_layers

    def blocks(self, span: Span) -> list[int]:
        """The blocks whose weights a slice of these layers reads for every row; identity layers repeat."""
        return [
            block.source
            for block in plan_slice(self.model, *span).blocks
            if block.source < self.model.n_layers
        ]


def measuring_header(model: ModelFile) -> bytes:
    """What a machine needs to time the layers of `model`: a GGUF file without the data of its tensors,
    without the vocabulary, and with a few layers' tensors only. Some kilobytes.

    Raises UsageError if there are too few layers, and whatever `plan_slice` raises.
    """
    timed = TimedModel(model, model.fingerprint, _choose_layers(model))
    wanted = {block.source for span in (timed.few, timed.last) for block in plan_slice(model, *span).blocks}
    metadata = {
        key: value.encoded
        for key, value in model.metadata.encoded.items()
        if key != ALIGNMENT_KEY and not key.startswith(("tokenizer.", "split."))
    }
    metadata["tokenizer.ggml.model"] = encode_value("none", GGUFValueType.STRING)
    metadata[f"{model.architecture}.vocab_size"] = encode_value(model.n_vocab, GGUFValueType.UINT32)
    metadata[_FINGERPRINT] = encode_value(model.fingerprint, GGUFValueType.STRING)
    metadata[_SPAN] = encode_value(list(timed.few), GGUFValueType.UINT32)
    tensors = [
        copied(tensor, tensor.name)
        for tensor in model.tensors.values()
        if block_of(tensor.name) is None or block_of(tensor.name) in wanted
    ]
    return GgufContent(metadata, tensors).header()


def open_timed_model(header: bytes, directory: Path) -> TimedModel:
    """What `measuring_header` gave, on the machine that is to be timed. Writes a file into `directory` that
    is as large as any weights would be, but takes no room. Raises ModelFileError.
    """
    path = directory / "timed.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + _LARGEST_BYTES)
    model = ModelFile.open(path)
    fingerprint, span = model.metadata.get(_FINGERPRINT), model.metadata.get(_SPAN)
    if not isinstance(fingerprint, str) or not isinstance(span, tuple) or len(span) != 2:
        raise ModelFileError(
            "this is no header of a model to be timed", hint="use the same version everywhere"
        )
    first, end = span
    if not 0 < first < end - 1 < model.n_layers - 1:
        raise ModelFileError(f"layers {first}:{end} of {model.n_layers} cannot be timed")
    return TimedModel(model, fingerprint, (first, end))


def random_slice(timed: TimedModel, span: Span, path: Path) -> SliceFile:
    """Layers of a model as a file like any other slice, with random weights.

    Raises CacheError when the disk has no room for it, OSError when it cannot be written.
    """
    plan = plan_slice(timed.model, *span)
    content = slice_content(timed.model, plan, *span)
    tensors = [replace(tensor, chunks=partial(_random_chunks, tensor)) for tensor in content.tensors]
    content = GgufContent(content.metadata, tensors)
    if content.n_bytes > free_bytes(path.parent):
        raise CacheError(
            f"{path.parent} has no room for {content.n_bytes / 1e9:.1f} GB of random weights",
            hint="free some space, or point XDG_CACHE_HOME to another disk",
        )
    with path.open("wb") as file:
        content.write(file)
    return open_slice(path)


def _choose_layers(model: ModelFile) -> Span:
    """As many layers as are needed to tell a layer's cost from a call's, where no identity layer is put in
    front of them if there is such a place."""
    weights, _ = layer_bytes(model)
    largest = max(weights[: model.n_layers])
    count = min(model.n_layers - 2, max(2, min(6, _TIMED_BYTES // max(1, largest))))
    if count < 2:
        raise UsageError(f"{model.n_layers} layers are too few to tell their cost from that of a call")
    middle = (model.n_layers - count) // 2
    firsts = sorted(range(1, model.n_layers - count), key=lambda first: abs(first - middle))
    for first in firsts:
        if not any(block.identity for block in plan_slice(model, first, first + count).blocks):
            return first, first + count
    return firsts[0], firsts[0] + count


def _random_chunks(tensor: OutputTensor) -> Iterator[memoryview]:
    pattern = _pattern(tensor.name, tensor.type, tensor.shape[0])
    buffer = memoryview(pattern * max(1, CHUNK_BYTES // len(pattern)))
    left = tensor.n_bytes
    while left:
        chunk = buffer[: min(left, len(buffer))]
        yield chunk
        left -= len(chunk)


def _pattern(name: str, kind: GGMLQuantizationType, length: int) -> bytes:
    """Some random rows of a tensor."""
    if kind not in _FLOATS:
        return _random_blocks(kind)
    rows = max(1, _PATTERN_BYTES // (4 * length))
    values = np.random.default_rng(0).uniform(-_MOST, _MOST, (rows, length)).astype(np.float32)
    if "norm" in name or name.startswith("rope_f"):
        values[:] = 1.0
    elif name.endswith("ssm_a"):  # a state must decay
        values[:] = -1.0
    return bytes(quantize(values, kind))


@cache
def _random_blocks(kind: GGMLQuantizationType) -> bytes:
    """Random blocks of a quantised type, those that stand for small numbers; zeros if gguf cannot tell."""
    block_bytes = GGML_QUANT_SIZES[kind][1]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (_PATTERN_BYTES // block_bytes, block_bytes), dtype=np.uint8)
    try:
        with np.errstate(all="ignore"):
            values: NDArray[np.float32] = dequantize(blocks, kind).reshape(len(blocks), -1)
            small = np.abs(values).max(axis=1) < _MOST  # neither infinite nor no number at all
    except NotImplementedError:
        return bytes(block_bytes)
    return bytes(blocks[small]) or bytes(block_bytes)
