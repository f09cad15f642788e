"""A dense llama model and a NextN block (native MTP head) as one model that stock llama.cpp runs.

llama.cpp's `llama` graph knows no NextN block; `mimo2` does, and its dense decoder block computes the same as
llama's but for the order of the rotary dimensions. So the model is written under that name: rows are moved,
never converted, and the block is appended as its last layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, quants
from numpy.typing import NDArray

from engine.errors import ArchitectureRefused, ModelFileError
from engine.model.file import ModelFile
from engine.model.header import TensorInfo, check_header
from engine.model.writer import GgufContent, OutputTensor, copied, encode_value, in_memory

ARCHITECTURE = "mimo2"
SOURCE_ARCHITECTURE = "llama"

_LAYER_TENSORS = frozenset(
    f"{name}.weight"
    for name in (
        *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
        *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
    )
)
_VOCABULARY_TENSORS = frozenset(("token_embd.weight", "output_norm.weight", "output.weight"))
_Q8_0_BLOCK = 32


def check_source(model: ModelFile) -> None:
    """Raise ArchitectureRefused, naming the reason, unless `with_nextn` can write the model."""
    reason = _obstacle(model)
    if reason:
        raise ArchitectureRefused(
            f"{model.name} cannot be given a NextN block: {reason}",
            hint="dense llama models without rotary scaling can",
        )


def _obstacle(model: ModelFile) -> str:
    if model.architecture != SOURCE_ARCHITECTURE:
        return f"its architecture is {model.architecture}"
    for name in model.tensors:
        layer_tensor = name.split(".", 2)[-1] if name.startswith("blk.") else name
        if layer_tensor not in _LAYER_TENSORS | _VOCABULARY_TENSORS:
            return f"it has the tensor {name}"
    heads, size = model.key("attention.head_count"), head_size(model)
    if not isinstance(heads, int) or heads * size != model.n_embd:
        return "its heads are not of one size"
    if model.key("rope.dimension_count", size) != size:
        return "not all dimensions of a head are rotated"
    if model.key("rope.scaling.type", "none") != "none" or model.key("rope.scale_linear", 1.0) != 1.0:
        return "its rotary embedding is scaled"
    return ""


def head_size(model: ModelFile) -> int:
    """Values of one attention head."""
    return model.n_embd // int(model.key("attention.head_count"))


def kv_heads(model: ModelFile) -> int:
    """Key/value heads of a layer."""
    return int(model.key("attention.head_count_kv", model.key("attention.head_count")))


def rope_base(model: ModelFile) -> float:
    """Base of the rotary frequencies; llama.cpp's default where the file says nothing."""
    return float(model.key("rope.freq_base", 10000.0))


def block_shapes(model: ModelFile) -> dict[str, tuple[int, ...]]:
    """Tensors of a NextN block for a model by name, without the `blk.N.` prefix: (outputs, inputs)."""
    n, ff, size = model.n_embd, int(model.key("feed_forward_length")), head_size(model)
    return {
        "nextn.eh_proj.weight": (n, 2 * n),
        "nextn.enorm.weight": (n,),
        "nextn.hnorm.weight": (n,),
        "attn_norm.weight": (n,),
        "attn_qkv.weight": (n + 2 * kv_heads(model) * size, n),
        "attn_output.weight": (n, n),
        "ffn_norm.weight": (n,),
        "ffn_gate.weight": (ff, n),
        "ffn_up.weight": (ff, n),
        "ffn_down.weight": (n, ff),
        "nextn.shared_head_norm.weight": (n,),
    }


def head_content(arrays: Mapping[str, NDArray[np.float32]], name: str) -> GgufContent:
    """A file of the block alone: matrices in Q8_0 where their rows fit its blocks, the rest in F32."""
    metadata = {
        "general.architecture": encode_value(ARCHITECTURE, GGUFValueType.STRING),
        "general.name": encode_value(name, GGUFValueType.STRING),
    }
    return GgufContent(metadata, [_quantized(name, array) for name, array in arrays.items()])


def read_head(path: Path) -> dict[str, NDArray[np.float32]]:
    """The arrays of a file of `head_content`, in float32."""
    found = {}
    for tensor in check_header(path).tensors:
        data = np.fromfile(path, dtype=np.uint8, count=tensor.n_bytes, offset=tensor.offset)
        rows = data.reshape(*tensor.shape[:0:-1], -1) if len(tensor.shape) > 1 else data
        values = quants.dequantize(rows, tensor.type)
        found[tensor.name] = np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape[::-1])
    return found


def with_nextn(source: ModelFile, head: Path, name: str) -> GgufContent:
    """`source` as a mimo2 model called `name`, with the block of `head` as its last layer.

    Raises ArchitectureRefused, and ModelFileError for a head of another model.
    """
    check_source(source)
    block = check_header(head).tensors
    wanted = {tensor: shape[::-1] for tensor, shape in block_shapes(source).items()}
    found = {tensor.name: tensor.shape for tensor in block}
    if found != wanted:
        differing = next(tensor for tensor in (*wanted, *found) if wanted.get(tensor) != found.get(tensor))
        raise ModelFileError(
            f"{head} does not fit {source.name}: {differing} is {found.get(differing, 'missing')}",
            hint="use the head that was trained for this model",
        )
    appended = [copied(tensor, f"blk.{source.n_layers}.{tensor.name}") for tensor in block]
    return GgufContent(_metadata(source, name), [*_tensors(source), *appended])


def _quantized(name: str, array: NDArray[np.float32]) -> OutputTensor:
    matrix = array.ndim == 2 and array.shape[1] % _Q8_0_BLOCK == 0
    kind = GGMLQuantizationType.Q8_0 if matrix else GGMLQuantizationType.F32
    data = quants.quantize(np.ascontiguousarray(array, dtype=np.float32), kind)
    return in_memory(name, array.shape[::-1], kind, data.tobytes())


def _metadata(source: ModelFile, name: str) -> dict[str, bytes]:
    kept = {
        key: value.encoded
        for key, value in source.metadata.encoded.items()
        if not key.startswith(f"{source.architecture}.")
    }
    written = {
        "general.architecture": encode_value(ARCHITECTURE, GGUFValueType.STRING),
        "general.name": encode_value(name, GGUFValueType.STRING),
    }
    for key, (value, kind) in _architecture_keys(source).items():
        written[f"{ARCHITECTURE}.{key}"] = encode_value(value, kind)
    return kept | written


def _architecture_keys(source: ModelFile) -> dict[str, tuple[Any, GGUFValueType]]:
    number, real = GGUFValueType.UINT32, GGUFValueType.FLOAT32
    blocks, size = source.n_layers + 1, head_size(source)
    return {
        "block_count": (blocks, number),
        "nextn_predict_layers": (1, number),
        "context_length": (source.context_length, number),
        "embedding_length": (source.n_embd, number),
        "feed_forward_length": (source.key("feed_forward_length"), number),
        "expert_feed_forward_length": (0, number),
        "vocab_size": (source.n_vocab, number),
        "attention.head_count": (source.key("attention.head_count"), number),
        "attention.head_count_kv": (kv_heads(source), number),
        "attention.key_length": (size, number),
        "attention.value_length": (size, number),
        "attention.layer_norm_rms_epsilon": (source.key("attention.layer_norm_rms_epsilon"), real),
        # mimo2 wants a sliding layer; a window as long as the context is full attention.
        "attention.sliding_window": (source.context_length, number),
        "attention.sliding_window_pattern": ([True] * blocks, GGUFValueType.BOOL),
        "rope.dimension_count": (size, number),
        "rope.freq_base": (rope_base(source), real),
        "rope.freq_base_swa": (rope_base(source), real),
    }


def _tensors(source: ModelFile) -> Iterator[OutputTensor]:
    for tensor in source.tensors.values():
        if tensor.name.endswith("attn_q.weight"):
            yield _half_split(source, tensor, source.key("attention.head_count"))
        elif tensor.name.endswith("attn_k.weight"):
            yield _half_split(source, tensor, kv_heads(source))
        else:
            yield copied(tensor, tensor.name)
    if "output.weight" not in source.tensors:  # llama ties the head to the embedding, mimo2 wants it written
        yield copied(source.tensors["token_embd.weight"], "output.weight")


def _half_split(source: ModelFile, tensor: TensorInfo, heads: int) -> OutputTensor:
    return OutputTensor(tensor.name, tensor.shape, tensor.type, partial(_reordered, source, tensor, heads))


def _reordered(source: ModelFile, tensor: TensorInfo, heads: int) -> Iterator[memoryview]:
    """Rows are quantised one by one, so whole rows of bytes are moved."""
    rows = half_split_rows(source.data(tensor.name).reshape(-1, tensor.row_bytes), heads)
    yield memoryview(rows.tobytes())


def half_split_rows(matrix: NDArray[Any], heads: int) -> NDArray[Any]:
    """Each head's rows from llama's interleaved rotary order (pairs 2i, 2i+1) to half-split (i, i + half)."""
    return matrix.reshape(heads, -1, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)
