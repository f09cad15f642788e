"""From (model, first, end) to a plan of the slice that computes exactly what those layers compute.

`plan_slice` decides everything that depends on the architecture: which layers go in, which metadata is
written, left out or rebased, and what stands in for the vocabulary. `slices.py` executes the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gguf import GGUFValueType

from engine.errors import CutRefused, ModelFileError, UsageError
from engine.model.architectures import (
    ARCHITECTURES,
    Architecture,
    SliceRules,
    SlidingWindow,
    architecture_of,
    refusal,
)
from engine.model.derived import (
    STAND_IN_ROWS,
    Entries,
    MetadataEntry,
    bad_key,
    count,
    per_layer,
    real,
    recurrent_layers,
)

if TYPE_CHECKING:
    from engine.model.file import ModelFile

TensorChoice = Literal["full", "stub", "zero", "drop", "from_output"]
"""What becomes of a vocabulary tensor: the source's; its first STAND_IN_ROWS rows; zeros of the right shape
in the smallest legal type; nothing; or (for `token_embd.weight`) the data of `output.weight`."""

PER_LAYER_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
)
"""Keys that hold one value for all layers, or an array with one for each."""

PATTERN = "attention.sliding_window_pattern"

RECURRENT = "attention.recurrent_layers"

NOT_PER_LAYER = frozenset({"rope.dimension_sections", "classifier.output_labels", PATTERN, RECURRENT})
"""Arrays that are not cut, whatever their length (both patterns are resolved and written anew)."""

UNREACHED_WINDOW = 1 << 24
"""A sliding window (tokens) longer than any context, yet 64 sequences of it do not overflow 32 bits."""

SWA_SHAPES = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
}
"""Keys that give sliding layers other head sizes, which the graphs of the table's architectures ignore."""

ZEROED_IN_IDENTITY = frozenset(
    f"{name}.{part}"
    for name in ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
    for part in ("weight", "bias")
)
"""Tensors of a block that are written as zeros in an identity layer: both of its additions add nothing, so
its output is its input, bit for bit."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a slice: a copy of a layer of the model, or the identity made from it."""

    source: int
    identity: bool = False


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What a slice file holds.

    Attributes:
        blocks: block i of the slice, NextN blocks last. Of an identity block the tensors named in
            ZEROED_IN_IDENTITY are zeros and the others are copied.
        set_metadata: full keys to write, replacing the source's.
        drop_metadata: full keys of the source to leave out.
        token_embd, output: what becomes of `token_embd.weight`, and of `output.weight` and its bias.
        rules: how to compute with the slice.
        native_mtp: the slice ends in a NextN block that llama.cpp can run.
    """

    blocks: tuple[Block, ...]
    set_metadata: dict[str, MetadataEntry]
    drop_metadata: frozenset[str]
    token_embd: TensorChoice
    output: TensorChoice
    rules: SliceRules
    native_mtp: bool


def plan_slice(model: ModelFile, first: int, end: int) -> SlicePlan:
    """Plan the slice of layers [first, end).

    The last slice (end == model.n_layers) keeps the head, the vocabulary and the NextN blocks.
    Raises UsageError for layers that do not exist, ArchitectureRefused for a model that cannot be split,
    CutRefused for layers of which no exact slice exists, ModelFileError for metadata that contradicts itself.
    """
    if not 0 <= first < end <= model.n_layers:
        raise UsageError(f"no layers {first}:{end} in {model.name}", hint=f"it has layers 0:{model.n_layers}")
    architecture = architecture_of(model)
    _check(model, architecture, first, end)
    is_last = end == model.n_layers
    mtp = is_last and not nextn_obstacle(model)
    pads = architecture.pads(model, first, end)
    blocks = (
        *(Block(source, identity=True) for source in pads),
        *(Block(layer) for layer in range(first, end)),
        *(Block(model.n_layers + i) for i in range(model.n_nextn if mtp else 0)),
    )
    entries: Entries = {
        **_per_layer(model, architecture, blocks),
        **_sliding_window(model, architecture, blocks),
        **_leading_dense(model, architecture, first, len(pads)),
        **_recurrent(model, architecture, blocks),
        **architecture.entries(model),
        "block_count": (len(blocks), GGUFValueType.UINT32),
        "nextn_predict_layers": (model.n_nextn if mtp else 0, GGUFValueType.UINT32),
    }
    dropped = {f"{architecture.name}.{name}" for name in {*architecture.dropped, PATTERN, RECURRENT}}
    dropped |= {key for key in model.metadata if key.startswith("split.")}
    set_metadata = {f"{architecture.name}.{name}": entry for name, entry in entries.items()}
    if not is_last:
        dropped |= {key for key in model.metadata if key.startswith("tokenizer.")}
        set_metadata["tokenizer.ggml.model"] = ("none", GGUFValueType.STRING)
        set_metadata[f"{architecture.name}.vocab_size"] = (STAND_IN_ROWS, GGUFValueType.UINT32)
    token_embd, output = _vocabulary(model, architecture, is_last, mtp)
    return SlicePlan(
        blocks=blocks,
        set_metadata=set_metadata,
        drop_metadata=frozenset(dropped - set_metadata.keys()),
        token_embd=token_embd,
        output=output,
        rules=_rules(model, architecture, last_block=len(pads) + end - first - 1),
        native_mtp=mtp,
    )


def whole_rules(model: ModelFile) -> SliceRules:
    """Rules for a model of any architecture that runs in one stage: tokens go in, logits come out."""
    architecture = ARCHITECTURES.get(model.architecture)
    can_rollback = architecture is not None and architecture.can_rollback
    return SliceRules(last_block=model.n_layers - 1, can_rollback=can_rollback)


def nextn_obstacle(model: ModelFile) -> str:
    """Why llama.cpp cannot draft with the model's own NextN block, in words; "" if it can."""
    if not model.n_nextn:
        return "it has no NextN block"
    architecture = ARCHITECTURES.get(model.architecture)
    if architecture is None or architecture.nextn is None:
        return f"no NextN block of {model.architecture} models can be run"
    if architecture.nextn.single and model.n_nextn > 1:
        return f"llama.cpp runs one NextN block of {architecture.name} models, and there are {model.n_nextn}"
    for name in architecture.nextn.tensors:
        tensor = f"blk.{model.n_layers}.{name}.weight"
        if tensor not in model.tensors:
            return f"its NextN block has no {tensor}"
    return architecture.nextn.obstacle(model)


def _check(model: ModelFile, architecture: Architecture, first: int, end: int) -> None:
    """Refuse what cannot be cut, and metadata that could not have been meant."""
    if reason := architecture.obstacle(model):
        raise refusal(model, reason)
    if model.key("attention.causal", True) is False:
        raise refusal(model, "it is no causal language model (attention.causal)")
    if end - first == architecture.reserved_count:
        raise CutRefused(
            f"{architecture.name} cannot be cut to {first}:{end}: by its layer count it is another model",
            hint="move the cut by a layer",
        )
    for name, full in SWA_SHAPES.items():
        if model.key(name) not in (None, model.key(full)):
            raise refusal(model, f"its sliding layers have another {full} ({name})")
    if "token_embd.weight" not in model.tensors:
        raise ModelFileError(f"{model.path} has no token_embd.weight", hint="convert the model again")


def _per_layer(model: ModelFile, architecture: Architecture, blocks: Iterable[Block]) -> Entries:
    """Arrays with a value for each layer, cut to the blocks of the slice."""
    prefix = f"{architecture.name}."
    entries: Entries = {}
    for key in model.metadata:
        name = key.removeprefix(prefix)
        if name == key or name in NOT_PER_LAYER or name in architecture.dropped:
            continue
        items = model.metadata[key]
        if not isinstance(items, tuple):
            continue
        if name not in PER_LAYER_KEYS:
            raise bad_key(model, name, "is an array that Skippy does not know how to cut")
        items = per_layer(model, name, items)
        if name not in architecture.varying and len(set(items)) > 1:
            raise bad_key(model, name, "differs between layers, but llama.cpp takes one value for all")
        entries[name] = ([items[block.source] for block in blocks], model.metadata_types[key])
    return entries


def _sliding_window(model: ModelFile, architecture: Architecture, blocks: Iterable[Block]) -> Entries:
    """The sliding-window pattern of the slice, written out; llama.cpp asserts at least one sliding layer."""
    window = architecture.sliding_window
    if window is None or (window.optional and not count(model, "attention.sliding_window")):
        return {}
    pattern = _sliding_pattern(model, window)
    slides = [pattern[block.source] for block in blocks]
    if any(slides):
        return {PATTERN: (slides, GGUFValueType.BOOL)}
    if window.optional:
        return {"attention.sliding_window": (0, GGUFValueType.UINT32)}
    if window.own_rope_scale and real(model, "rope.scaling.factor", 1.0) != 1.0:
        raise CutRefused(
            f"{architecture.name} cannot be cut to dense layers only while it scales their positions",
            hint="move the cut, so that every stage has a sliding-window layer",
        )
    # A window that no context reaches is full attention, with the positions of the dense layers.
    return {
        PATTERN: ([True] * len(slides), GGUFValueType.BOOL),
        "attention.sliding_window": (UNREACHED_WINDOW, GGUFValueType.UINT32),
        "rope.freq_base_swa": (real(model, "rope.freq_base", 10000.0), GGUFValueType.FLOAT32),
    }


def _sliding_pattern(model: ModelFile, window: SlidingWindow) -> list[bool]:
    """Which blocks of the whole model slide (llama_hparams::set_swa_pattern: NextN blocks do not)."""
    pattern = model.key(PATTERN, window.period)
    padding = [False] * model.n_nextn
    if isinstance(pattern, tuple):
        if len(pattern) == model.n_layers:
            return [*map(bool, pattern), *padding]
        return [*map(bool, per_layer(model, PATTERN, pattern))]
    if pattern is None:
        raise bad_key(model, PATTERN, "is missing")
    period = count(model, PATTERN, window.period or 0)
    return [period == 0 or layer % period < period - 1 for layer in range(model.n_layers)] + padding


def _leading_dense(model: ModelFile, architecture: Architecture, first: int, n_pads: int) -> Entries:
    n_dense = count(model, "leading_dense_block_count")
    if not architecture.leading_dense or not n_dense:
        return {}
    return {"leading_dense_block_count": (n_pads + max(0, n_dense - first), GGUFValueType.UINT32)}


def _recurrent(model: ModelFile, architecture: Architecture, blocks: Iterable[Block]) -> Entries:
    if not architecture.hybrid:
        return {}
    recurrent = recurrent_layers(model)
    return {RECURRENT: ([recurrent[block.source] for block in blocks], GGUFValueType.BOOL)}


def _vocabulary(
    model: ModelFile, architecture: Architecture, is_last: bool, mtp: bool
) -> tuple[TensorChoice, TensorChoice]:
    """What the slice holds as (token_embd.weight, output.weight and what belongs to it)."""
    if not is_last:
        return "stub", "stub" if architecture.output_required else "drop"
    if mtp or "output.weight" not in model.tensors:
        return "full", "full"
    # The head's bias, and its scale in NVFP4, can only stand beside an `output.weight`.
    has_more = any(name.startswith("output.") for name in model.tensors if name != "output.weight")
    return ("zero", "full") if architecture.output_required or has_more else ("from_output", "drop")


def _rules(model: ModelFile, architecture: Architecture, last_block: int) -> SliceRules:
    return SliceRules(
        input_scale=architecture.embedding_scale(model),
        input_tensor=architecture.input_tensor,
        capture=architecture.capture,
        mrope=architecture.mrope,
        last_block=last_block,
        can_rollback=architecture.can_rollback,
    )
