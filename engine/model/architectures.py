"""What is known about each architecture: how a slice of it is fed, read and rebased.

llama.cpp derives some properties of a layer from its index or from the number of layers: a sliding-window
pattern, an attention scale, a gating function. A slice has other indices and another count, so whatever is
derived must be written out as metadata, or the slice is silently wrong. `ARCHITECTURES` names, for each
architecture that is claimed, what there is to write out; `rebase.plan_slice` does it. Every entry follows
llama.cpp's `src/models/*.cpp`, and tests/conformance compares every one with the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.errors import ArchitectureRefused
from engine.model import derived

if TYPE_CHECKING:
    from engine.model.file import ModelFile

Capture = Literal["nextn", "layer_output"]


@dataclass(frozen=True, slots=True)
class SliceRules:
    """Everything that compute must know about a slice.

    Attributes:
        input_scale: stage 0 multiplies the rows of the token embedding by it, in float32.
        input_tensor: hidden states cannot be given as a batch: they are written over this tensor of the
            graph, once llama.cpp has computed it for stand-in tokens. "": a batch of them will do.
        capture: hidden states leave as NextN rows, or are read from the tensor `l_out-<last_block>`.
        mrope: a batch of hidden states needs four positions a row: three times the position, then 0.
        last_block: index in the slice file of its last layer, NextN blocks aside.
        can_rollback: the memory can be trimmed to any position, which speculation needs.
    """

    input_scale: float = 1.0
    input_tensor: str = ""
    capture: Capture = "layer_output"
    mrope: bool = False
    last_block: int = 0
    can_rollback: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SliceRules:
        return cls(**fields)


class InputScale(Enum):
    """What llama.cpp's graph does to its input."""

    NONE = "nothing"
    ROOT = "multiplies the rows of tokens by sqrt(n_embd)"
    KEY = "multiplies the rows of tokens and hidden states by embedding_scale"


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Which layers attend to a window only.

    Attributes:
        period: in a file without a pattern every `period`-th layer is dense; None: it must have one.
        optional: there are sliding layers only if `attention.sliding_window` says so.
        own_rope_scale: sliding layers ignore the file's rotary scaling factor.
    """

    period: int | None
    optional: bool = False
    own_rope_scale: bool = False


@dataclass(frozen=True, slots=True)
class NextN:
    """What llama.cpp's graph of a NextN block asserts (a failed assertion ends the process).

    Attributes:
        tensors: weights of the block that the loader does not insist on.
        single: there may be one NextN block only.
        obstacle: what is in the way of running it, in words, or "".
    """

    tensors: tuple[str, ...] = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
    single: bool = False
    obstacle: Callable[[ModelFile], str] = derived.no_obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture that can be split.

    Attributes:
        name: as in `general.architecture`.
        source: the file of llama.cpp's `src/models` that defines it.
        default_embedding_scale: `embedding_scale` of a file without that key.
        input_tensor: the first tensor of the graph that layer 0 sees, where hidden states cannot be given as
            a batch: the graph would scale them again (gemma, gemma2) or aborts (glm4, glm4moe).
        output_required: llama.cpp insists on `output.weight` beside `token_embd.weight`.
        leading_dense: `leading_dense_block_count` counts layers from the first one on.
        hybrid: some layers have a recurrent state instead of a cache of keys and values.
        varying: per-layer keys whose items may differ; of all others llama.cpp takes the first item.
        entries: metadata that follows from the whole model and that a slice must state.
        dropped: metadata that a slice must not have.
        pads: source layers of the identity layers to put in front of layers [first, end).
        obstacle: what is in the way of cutting this model, in words, or "".
        reserved_count: a slice of exactly so many layers would be taken for another model.
    """

    name: str
    source: str
    input_scale: InputScale = InputScale.NONE
    default_embedding_scale: float = 0.0
    input_tensor: str = ""
    capture: Capture = "layer_output"
    output_required: bool = False
    sliding_window: SlidingWindow | None = None
    leading_dense: bool = False
    hybrid: bool = False
    varying: frozenset[str] = frozenset()
    nextn: NextN | None = None
    mrope: bool = False
    can_rollback: bool = True
    entries: Callable[[ModelFile], derived.Entries] = derived.nothing
    dropped: frozenset[str] = frozenset()
    pads: Callable[[ModelFile, int, int], tuple[int, ...]] = derived.no_pads
    obstacle: Callable[[ModelFile], str] = derived.no_obstacle
    reserved_count: int = 0

    def embedding_scale(self, model: ModelFile) -> float:
        """Factor between a row of the token embedding and the input of layer 0, a float32 value."""
        if self.input_scale is InputScale.ROOT:
            return float(np.sqrt(np.float32(model.n_embd)))
        if self.input_scale is InputScale.KEY:
            return derived.real(model, "embedding_scale", self.default_embedding_scale) or 1.0
        return 1.0


def architecture_of(model: ModelFile) -> Architecture:
    """The table's entry for a model.

    Raises ArchitectureRefused, naming the architectures that work.
    """
    architecture = ARCHITECTURES.get(model.architecture)
    if architecture is None:
        raise refusal(
            model, REFUSED.get(model.architecture, "how to cut its layers exactly has not been proven")
        )
    return architecture


def refusal(model: ModelFile, reason: str) -> ArchitectureRefused:
    """The error for a model that cannot be split, with the list of architectures that can."""
    return ArchitectureRefused(
        f"{model.name} ({model.architecture}) cannot be split: {reason}",
        hint=f"run it in one stage, or choose a model of {', '.join(sorted(ARCHITECTURES))}",
    )


def _table(*entries: Architecture) -> Mapping[str, Architecture]:
    return {entry.name: entry for entry in entries}


ARCHITECTURES: Mapping[str, Architecture] = _table(
    Architecture(name="arcee", source="arcee"),
    Architecture(name="bailingmoe2", source="bailingmoe2", output_required=True, leading_dense=True),
    Architecture(name="command-r", source="command-r", obstacle=derived.command_r_obstacle),
    Architecture(name="deepseek", source="deepseek", leading_dense=True),
    Architecture(
        name="deepseek2",
        source="deepseek2",
        leading_dense=True,
        nextn=NextN(single=True, obstacle=derived.deepseek2_nextn_obstacle),
        entries=derived.deepseek2_entries,
        pads=derived.deepseek2_pads,
    ),
    Architecture(name="dots1", source="dots1", output_required=True, leading_dense=True),
    Architecture(name="ernie4_5", source="ernie4-5"),
    Architecture(
        name="ernie4_5-moe",
        source="ernie4-5-moe",
        leading_dense=True,
        obstacle=derived.interleaved_experts_obstacle,
    ),
    Architecture(name="exaone", source="exaone"),
    Architecture(name="gemma", source="gemma", input_scale=InputScale.ROOT, input_tensor="inp_scaled"),
    Architecture(
        name="gemma2",
        source="gemma2",
        input_scale=InputScale.ROOT,
        input_tensor="inp_scaled",
        sliding_window=SlidingWindow(period=2),
        obstacle=derived.gemma2_obstacle,
        reserved_count=46,
    ),
    Architecture(
        name="gemma3",
        source="gemma3",
        input_scale=InputScale.ROOT,
        sliding_window=SlidingWindow(period=6, optional=True, own_rope_scale=True),
        obstacle=derived.gemma3_obstacle,
        reserved_count=62,
    ),
    Architecture(name="glm4", source="glm4", input_tensor="embd"),
    Architecture(
        name="glm4moe",
        source="glm4-moe",
        leading_dense=True,
        nextn=NextN(single=True, obstacle=derived.glm4moe_nextn_obstacle),
        input_tensor="embd",
    ),
    Architecture(
        name="gpt-oss",
        source="openai-moe",
        capture="nextn",
        output_required=True,
        sliding_window=SlidingWindow(period=2),
    ),
    Architecture(
        name="granite",
        source="granite",
        input_scale=InputScale.KEY,
        entries=derived.granite_entries,
        dropped=frozenset({"deepstack_mapping"}),
    ),
    Architecture(
        name="granitemoe", source="granite-moe", input_scale=InputScale.KEY, entries=derived.granite_entries
    ),
    Architecture(name="hunyuan-moe", source="hunyuan-moe"),
    Architecture(name="internlm2", source="internlm2", output_required=True),
    Architecture(name="llama", source="llama"),
    Architecture(
        name="mimo2",
        source="mimo2",
        capture="nextn",
        output_required=True,
        sliding_window=SlidingWindow(period=None, own_rope_scale=True),
        varying=frozenset({"attention.head_count", "attention.head_count_kv"}),
        nextn=NextN(
            ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_qkv", "ffn_gate", "ffn_down", "ffn_up")
        ),
    ),
    Architecture(
        name="minicpm",
        source="minicpm",
        input_scale=InputScale.KEY,
        default_embedding_scale=12.0,
        entries=derived.minicpm_entries,
    ),
    Architecture(name="minimax-m2", source="minimax-m2", output_required=True),
    Architecture(name="mistral3", source="mistral3"),
    Architecture(
        name="olmo2",
        source="olmo2",
        output_required=True,
        sliding_window=SlidingWindow(period=4, optional=True),
    ),
    Architecture(name="olmoe", source="olmoe", output_required=True),
    Architecture(name="phi3", source="phi3"),
    Architecture(name="phimoe", source="phimoe", output_required=True),
    Architecture(name="qwen2", source="qwen2"),
    Architecture(name="qwen2moe", source="qwen2moe", output_required=True),
    Architecture(name="qwen3", source="qwen3"),
    Architecture(
        name="qwen3next",
        source="qwen3next",
        hybrid=True,
        can_rollback=False,
        pads=derived.hybrid_pads,
        obstacle=derived.hybrid_obstacle,
    ),
    Architecture(
        name="qwen35",
        source="qwen35",
        hybrid=True,
        mrope=True,
        can_rollback=False,
        pads=derived.hybrid_pads,
        obstacle=derived.hybrid_obstacle,
    ),
    Architecture(
        name="qwen35moe",
        source="qwen35moe",
        hybrid=True,
        mrope=True,
        can_rollback=False,
        pads=derived.hybrid_pads,
        obstacle=derived.hybrid_obstacle,
    ),
    Architecture(name="qwen3moe", source="qwen3moe"),
    Architecture(name="qwen3vl", source="qwen3vl", mrope=True, dropped=frozenset({"n_deepstack_layers"})),
    Architecture(
        name="qwen3vlmoe", source="qwen3vlmoe", mrope=True, dropped=frozenset({"n_deepstack_layers"})
    ),
    Architecture(name="seed_oss", source="seed-oss"),
    Architecture(name="smollm3", source="smollm3", pads=derived.smollm3_pads),
    Architecture(name="starcoder2", source="starcoder2"),
)
"""The architectures that can be split, by the name in `general.architecture`."""

REFUSED: Mapping[str, str] = {
    "gemma3n": "more than one tensor crosses a layer boundary (AltUp streams, per-layer embeddings)",
    "gemma4": "layers share the keys and values of others, and read per-layer embeddings of the tokens",
    "rwkv7": "more than one tensor crosses a layer boundary (the values of the first layer)",
    "arwkv7": "more than one tensor crosses a layer boundary (the values of the first layer)",
    "deepseek4": "more than one tensor crosses a layer boundary (hyper-connections)",
    "gpt2": "positions are learned embeddings that llama.cpp adds to hidden states again",
    "starcoder": "positions are learned embeddings that llama.cpp adds to hidden states again",
    "llama4": "its attention chunks and layers without rotary embedding follow from the layer index",
}
"""Why some architectures that people ask for are not in the table."""
