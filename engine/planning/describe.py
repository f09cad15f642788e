"""What planning needs to know of a model, read from its header alone."""

from __future__ import annotations

import re

from engine.errors import CutRefused, SkippyError
from engine.model.derived import recurrent_layers
from engine.model.file import ModelFile
from engine.model.rebase import nextn_obstacle, plan_slice
from engine.planning.profiles import LayerProfile, ModelProfile
from engine.protocol.activations import packed_size
from engine.protocol.messages import WireType

_LAYER = re.compile(r"blk\.(\d+)\.")
_F16_BYTES, _F32_BYTES = 2, 4
_LIVE_ROWS_OF_WIDTH = 6  # rows of n_embd values, and ..
_LIVE_ROWS_OF_FFN = 3  # .. of the feed-forward network that a graph holds at the same time


def describe_model(model: ModelFile, wire: WireType = WireType.F32) -> ModelProfile:
    """The profile of a model; one that cannot be cut has no `cuts`. `wire` is how activations travel."""
    n_layers = model.n_layers
    tensors = model.tensors
    weights, read = layer_bytes(model)
    drafts = not nextn_obstacle(model)
    head = [t.n_bytes for name, t in tensors.items() if name.startswith(("output.", "output_norm."))]
    if drafts or "output.weight" not in tensors:
        head.append(tensors["token_embd.weight"].n_bytes)
    kv = [_kv_bytes(model, layer) for layer in range(n_layers + model.n_nextn)]
    recurrent = recurrent_layers(model) if model.key("ssm.state_size") else [False] * len(kv)
    kept_rows = model.n_embd * _F32_BYTES  # hidden states for the NextN block, by position
    width = _LIVE_ROWS_OF_WIDTH * model.n_embd + _LIVE_ROWS_OF_FFN * _ffn_width(model)
    return ModelProfile(
        name=model.name,
        fingerprint=model.fingerprint,
        layers=tuple(
            LayerProfile(
                weight_bytes=weights[layer],
                read_bytes=read[layer],
                kv_bytes=0 if recurrent[layer] else kv[layer],
                state_bytes=_state_bytes(model) if recurrent[layer] else 0,
            )
            for layer in range(n_layers)
        ),
        cuts=tuple(sorted(allowed_cuts(model))),
        head_bytes=sum(head) + (sum(weights[n_layers:]) if drafts else 0),
        row_bytes=packed_size(1, model.n_embd, wire),
        head_kv_bytes=sum(kv[n_layers:]) + kept_rows if drafts else 0,
        scratch_bytes=width * _F32_BYTES,
        logits_bytes=model.n_vocab * _F32_BYTES,
        native_mtp=drafts,
    )


def layer_bytes(model: ModelFile) -> tuple[list[int], list[int]]:
    """Bytes of each block's weights, and those that one row reads of them: of the experts only a share.
    NextN blocks come last."""
    share = _count(model, "expert_used_count", 1) / max(1, _count(model, "expert_count", 1))
    n_blocks = model.n_layers + model.n_nextn
    weights, read = [0] * n_blocks, [0.0] * n_blocks
    for tensor in model.tensors.values():
        block = block_of(tensor.name)
        if block is not None and block < n_blocks:
            weights[block] += tensor.n_bytes
            read[block] += tensor.n_bytes * (share if "_exps." in tensor.name else 1.0)
    return weights, [round(n_bytes) for n_bytes in read]


def block_of(tensor: str) -> int | None:
    """The block that a tensor belongs to, by its name; None for those outside all blocks."""
    match = _LAYER.match(tensor)
    return int(match[1]) if match else None


def head_read_bytes(model: ModelFile) -> int:
    """Bytes that one row reads of the head."""
    head = model.tensors.get("output.weight") or model.tensors["token_embd.weight"]
    return head.n_bytes


def allowed_cuts(model: ModelFile) -> frozenset[int]:
    """The layers before which the model can be cut in two; none if it cannot be split at all."""
    allowed = set()
    for cut in range(1, model.n_layers):
        try:
            plan_slice(model, 0, cut)
            plan_slice(model, cut, model.n_layers)
        except CutRefused:
            continue
        except SkippyError:  # whatever it is, it is not about this cut
            break
        allowed.add(cut)
    return frozenset(allowed)


def _kv_bytes(model: ModelFile, layer: int) -> int:
    """Keys and values of one token, f16 (llama-kv-cache.cpp; with MLA there are keys only)."""
    heads = _of_layer(model, "attention.head_count", layer, 1)
    kv_heads = _of_layer(model, "attention.head_count_kv", layer, heads)
    width = model.n_embd // max(1, heads)
    keys = _count(model, "attention.key_length", width)
    values = _count(model, "attention.value_length", width)
    if model.key("attention.key_length_mla"):
        values = 0
    return kv_heads * (keys + values) * _F16_BYTES


def _state_bytes(model: ModelFile) -> int:
    """Recurrent state of one sequence in one layer, f32 (llama-hparams.cpp: n_embd_r and n_embd_s)."""
    inner, state = _count(model, "ssm.inner_size", 0), _count(model, "ssm.state_size", 0)
    groups, kernel = _count(model, "ssm.group_count", 0), _count(model, "ssm.conv_kernel", 1)
    return ((kernel - 1) * (inner + 2 * groups * state) + state * inner) * _F32_BYTES


def _ffn_width(model: ModelFile) -> int:
    """Values of a row inside the widest feed-forward network; of experts, all that a row uses."""
    dense = max(_values(model, "feed_forward_length"), default=0)
    each = max(_values(model, "expert_feed_forward_length"), default=dense)
    return max(dense, each * _count(model, "expert_used_count", 0))


def _of_layer(model: ModelFile, name: str, layer: int, default: int) -> int:
    values = _values(model, name)
    return values[min(layer, len(values) - 1)] if values else default


def _values(model: ModelFile, name: str) -> list[int]:
    """A key that is one number or one for each layer."""
    value = model.key(name, ())
    return [int(item) for item in (value if isinstance(value, tuple) else (value,))]


def _count(model: ModelFile, name: str, default: int) -> int:
    values = _values(model, name)
    return values[0] if values else default
