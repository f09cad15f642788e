"""What llama.cpp derives from the whole model's layer count or from a layer's index, one rule per function.

Each function follows a line of llama.cpp's `src/models/*.cpp`, which its docstring names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFValueType

from engine.errors import ModelFileError

if TYPE_CHECKING:
    from engine.model.file import ModelFile

MetadataEntry = tuple[Any, GGUFValueType]
"""A metadata value and its type; of a list or tuple, the type of its items."""

Entries = dict[str, MetadataEntry]
"""Metadata by key, without the architecture's prefix."""

STAND_IN_ROWS = 32
"""Rows of the vocabulary tensors of a slice that has no use for them."""

SMOLLM3_ROPE_PERIOD = 4

_SOFTMAX, _SIGMOID = 1, 2  # llama_expert_gating_func_type


def nothing(model: ModelFile) -> Entries:
    """Most architectures: no key of a slice differs but those that `rebase` knows."""
    return {}


def no_pads(model: ModelFile, first: int, end: int) -> tuple[int, ...]:
    """Most architectures: no layer depends on its index."""
    return ()


def no_obstacle(model: ModelFile) -> str:
    """Most architectures: every model can be cut."""
    return ""


def bad_key(model: ModelFile, name: str, problem: str) -> ModelFileError:
    """The error for a key of the architecture (`name` is without its prefix)."""
    return ModelFileError(
        f"{model.path}: {model.architecture}.{name}: {problem}", hint="convert the model again"
    )


def count(model: ModelFile, name: str, default: int = 0) -> int:
    """A key that must be a whole number. Raises ModelFileError."""
    value = model.key(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad_key(model, name, "is not a number from 0 on")
    return value


def real(model: ModelFile, name: str, default: float) -> float:
    """A key that must be a number. Raises ModelFileError."""
    value = model.key(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_key(model, name, "is not a number")
    return float(value)


def per_layer(model: ModelFile, name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """An array that must have an item for each block. Raises ModelFileError."""
    n_blocks = model.n_layers + model.n_nextn
    if len(values) != n_blocks:
        raise bad_key(model, name, f"has {len(values)} items for {n_blocks} blocks")
    return values


def vocabulary_size(model: ModelFile) -> int:
    """Tokens as llama.cpp's model loaders count them; the token embedding may have more rows."""
    return count(model, "vocab_size") or len(model.metadata.get("tokenizer.ggml.tokens", ()))


def has_rope_sections(model: ModelFile) -> bool:
    """Does the file ask for M-RoPE (llama_hparams::use_mrope)?"""
    sections = model.key("rope.dimension_sections")
    return isinstance(sections, tuple) and len(sections) == 4 and sections[0] > 0 and sections[1] > 0


def gemma2_obstacle(model: ModelFile) -> str:
    """gemma2.cpp: the 27B model, known by its 46 layers, scales attention by 1/sqrt(n_embd / n_head)."""
    return _attention_scale_obstacle(model, 46)


def gemma3_obstacle(model: ModelFile) -> str:
    """gemma3.cpp: as gemma2, and the 27B model has 62 layers."""
    return _attention_scale_obstacle(model, 62)


def _attention_scale_obstacle(model: ModelFile, layers_of_27b: int) -> str:
    if model.n_layers != layers_of_27b:
        return ""
    return f"its attention scale follows from its having {layers_of_27b} layers, and no key can carry it"


def command_r_obstacle(model: ModelFile) -> str:
    """command-r.cpp: only models of 64 layers and more have their query and key norms loaded."""
    return "its query and key norms are loaded with 64 layers or more only" if model.n_layers >= 64 else ""


def interleaved_experts_obstacle(model: ModelFile) -> str:
    """ernie4-5-moe.cpp: only each n-th layer has experts, by its index."""
    step = count(model, "interleave_moe_layer_step", 1)
    return "" if step == 1 else f"which layers have experts follows from the layer index (every {step}th)"


def granite_entries(model: ModelFile) -> Entries:
    """llama-graph.cpp, build_inp_embd: embedding_scale is applied to hidden states too; 0 switches it off."""
    return {"embedding_scale": (0.0, GGUFValueType.FLOAT32)}


def minicpm_entries(model: ModelFile) -> Entries:
    """minicpm.cpp: older files leave the residual scale to a formula over the number of layers."""
    entries = granite_entries(model)
    if model.key("residual_scale") is None:
        scale = np.float32(1.4) / np.sqrt(np.float32(model.n_layers))
        entries["residual_scale"] = (float(scale), GGUFValueType.FLOAT32)
    return entries


def smollm3_pads(model: ModelFile, first: int, end: int) -> tuple[int, ...]:
    """smollm3.cpp: each 4th layer has no rotary embedding, by its index: bring `first` back to its phase."""
    return (first,) * (first % SMOLLM3_ROPE_PERIOD)


def deepseek2_entries(model: ModelFile) -> Entries:
    """deepseek2.cpp: gating function and low-rank query projection by layer count and vocabulary."""
    entries: Entries = {}
    n_vocab = vocabulary_size(model)
    if not count(model, "expert_gating_func"):
        is_glm_flash = model.n_layers in (47, 48) and n_vocab == 154880
        entries["expert_gating_func"] = (_SIGMOID if is_glm_flash else _SOFTMAX, GGUFValueType.UINT32)
    if deepseek2_is_lite(model.n_layers, n_vocab):
        # A slice of another size must have the key, and 0 says what the count said.
        entries["attention.q_lora_rank"] = (0, GGUFValueType.UINT32)
    elif model.key("attention.q_lora_rank") is None:
        raise bad_key(model, "attention.q_lora_rank", "is missing")
    return entries


def deepseek2_pads(model: ModelFile, first: int, end: int) -> tuple[int, ...]:
    """deepseek2.cpp: bring a slice past the layer counts that would ignore its low-rank query projection."""
    n_vocab = vocabulary_size(model)
    if deepseek2_is_lite(model.n_layers, n_vocab):
        return ()
    slice_vocab = n_vocab if end == model.n_layers else STAND_IN_ROWS
    n_pads = 0
    while deepseek2_is_lite(end - first + n_pads, slice_vocab):
        n_pads += 1
    # Copies of layer 0, if that is one of the leading dense layers, are the smallest there are.
    return (0 if count(model, "leading_dense_block_count") else first,) * n_pads


def deepseek2_is_lite(n_layers: int, n_vocab: int) -> bool:
    """deepseek2.cpp: these models have no low-rank query projection, whatever the file says."""
    return n_layers in (26, 27) or (n_layers == 48 and n_vocab == 128256)


def deepseek2_nextn_obstacle(model: ModelFile) -> str:
    """The assertions of deepseek2.cpp's graph_mtp."""
    if not count(model, "attention.key_length_mla"):
        return "its attention is not stored in absorbed form (attention.key_length_mla)"
    if deepseek2_is_lite(model.n_layers, vocabulary_size(model)) or not count(model, "attention.q_lora_rank"):
        return "its queries have no low-rank projection (attention.q_lora_rank)"
    if real(model, "attention.temperature_scale", 0.0):
        return "its attention has a temperature (attention.temperature_scale)"
    if count(model, "leading_dense_block_count") > model.n_layers:
        return "its NextN block counts as a leading dense layer (leading_dense_block_count)"
    return ""


def glm4moe_nextn_obstacle(model: ModelFile) -> str:
    """glm4-moe.cpp: graph_mtp rotates without sections, on which ggml's M-RoPE asserts."""
    return "its graph knows no M-RoPE (rope.dimension_sections)" if has_rope_sections(model) else ""


def recurrent_layers(model: ModelFile) -> list[bool]:
    """qwen35.cpp: which blocks have a recurrent state; by default all but each 4th layer and NextN blocks."""
    n_blocks = model.n_layers + model.n_nextn
    stated = model.key("attention.recurrent_layers")
    if isinstance(stated, tuple):
        return [bool(flag) for flag in per_layer(model, "attention.recurrent_layers", stated)]
    if stated is not None:
        return [bool(stated)] * n_blocks
    interval = max(count(model, "full_attention_interval", 4), 1)
    return [layer < model.n_layers and (layer + 1) % interval != 0 for layer in range(n_blocks)]


def hybrid_pads(model: ModelFile, first: int, end: int) -> tuple[int, ...]:
    """llama-memory-hybrid.cpp aborts without a layer of each kind: add one of the kind that is missing."""
    recurrent = recurrent_layers(model)[: model.n_layers]
    missing = {False, True} - set(recurrent[first:end])
    return tuple(recurrent.index(kind) for kind in missing)


def hybrid_obstacle(model: ModelFile) -> str:
    """There must be a layer of each kind to pad with."""
    kinds = set(recurrent_layers(model)[: model.n_layers])
    return "" if len(kinds) == 2 else "its layers are all of one kind, recurrent or attention"
