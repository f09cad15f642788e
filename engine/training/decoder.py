"""The decoder block of a dense llama model in PyTorch, and the trunk made of them.

The arithmetic is llama.cpp's (`src/models/llama.cpp`): RMS norm, rotary embedding, grouped-query attention, a
SiLU-gated feed-forward, with the residual stream in float32. Queries and keys are kept in the half-split
rotary order (dimension i is rotated with i + half), as the NextN block stores them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from gguf import quants
from numpy.typing import NDArray

from engine.model.file import ModelFile
from engine.model.nextn import check_source, half_split_rows, head_size, kv_heads, rope_base

Tensor = Any
Weights = dict[str, Tensor]
"""Of one block: attn_norm, qkv, attn_output, ffn_norm, gate_up, ffn_down; matrices are (outputs, inputs)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and constants of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    feed_forward: int
    vocabulary: int
    epsilon: float
    rope_base: float


def shape_of(model: ModelFile) -> Shape:
    """Raises ArchitectureRefused for a model that cannot be given a NextN block."""
    check_source(model)
    return Shape(
        layers=model.n_layers,
        heads=int(model.key("attention.head_count")),
        kv_heads=kv_heads(model),
        head_size=head_size(model),
        width=model.n_embd,
        feed_forward=int(model.key("feed_forward_length")),
        vocabulary=model.n_vocab,
        epsilon=float(model.key("attention.layer_norm_rms_epsilon")),
        rope_base=rope_base(model),
    )


def maybe_compiled(function: Any, device: str, *, dynamic: bool = False) -> Any:
    """`function` fused by PyTorch's compiler where that pays: on a GPU. `dynamic`: for sizes that vary."""
    if not device.startswith("cuda"):
        return function
    import torch._dynamo

    torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
    torch._dynamo.config.recompile_limit = 32
    return torch.compile(function, dynamic=dynamic)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """In float32, whatever the type of `x`."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of (.., rows, head size); `cosine` and `sine` are (rows, head size / 2)."""
    first, second = x.float().chunk(2, -1)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
    return rotated.to(x.dtype)


def project(
    x: Tensor, weights: Weights, cosine: Tensor, sine: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows (batch, rows, width), rotated."""
    batch, rows, _ = x.shape
    fused = rms_norm(x, weights["attn_norm"], shape.epsilon).to(weights["qkv"].dtype) @ weights["qkv"].t()
    sizes = [count * shape.head_size for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    queries, keys, values = (
        part.view(batch, rows, -1, shape.head_size).transpose(1, 2) for part in fused.split(sizes, -1)
    )
    return rotate(queries, cosine, sine), rotate(keys, cosine, sine), values


def finish(x: Tensor, attended: Tensor, weights: Weights, shape: Shape) -> Tensor:
    """The rest of the block after attention: both additions to the residual stream, in float32."""
    batch, rows, _ = x.shape
    merged = attended.transpose(1, 2).reshape(batch, rows, -1)
    x = x + (merged @ weights["attn_output"].t()).float()
    normed = rms_norm(x, weights["ffn_norm"], shape.epsilon).to(weights["gate_up"].dtype)
    gate, up = (normed @ weights["gate_up"].t()).chunk(2, -1)
    return x + ((functional.silu(gate) * up) @ weights["ffn_down"].t()).float()


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of every row to itself and those before it."""
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


class Rotary:
    """Cosines and sines by position, (positions, head size / 2) in float32."""

    def __init__(self, shape: Shape, positions: int, device: str) -> None:
        exponents = torch.arange(0, shape.head_size, 2, device=device).float() / shape.head_size
        angles = torch.arange(positions, device=device).float()[:, None] / shape.rope_base**exponents
        self.cosine, self.sine = angles.cos(), angles.sin()

    def rows(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        return self.cosine[first:end], self.sine[first:end]


class Trunk:
    """The frozen model. Matrices are held in `dtype`, norms and the token embedding in float32."""

    def __init__(self, model: ModelFile, *, device: str, dtype: Any, positions: int) -> None:
        self.shape = shape_of(model)
        self.device = device
        self.dtype = dtype
        self.rotary = Rotary(self.shape, positions, device)
        read = partial(_tensor, model, device=device)
        self.embedding = read("token_embd.weight")
        tied = "output.weight" not in model.tensors
        self.output = (self.embedding if tied else read("output.weight")).to(dtype)
        self.output_norm = read("output_norm.weight")
        self.blocks = [self._block(read, layer) for layer in range(self.shape.layers)]
        self.project = maybe_compiled(project, device)
        self.finish = maybe_compiled(finish, device)

    def _block(self, read: Callable[[str], Tensor], layer: int) -> Weights:
        def get(name: str) -> Tensor:
            return read(f"blk.{layer}.{name}.weight")

        matrices = {
            "qkv": torch.cat([get("attn_q"), get("attn_k"), get("attn_v")]),
            "attn_output": get("attn_output"),
            "gate_up": torch.cat([get("ffn_gate"), get("ffn_up")]),
            "ffn_down": get("ffn_down"),
        }
        norms = {name: get(name) for name in ("attn_norm", "ffn_norm")}
        return norms | {name: matrix.to(self.dtype) for name, matrix in matrices.items()}

    def hidden(self, tokens: Tensor) -> Tensor:
        """States after the last block, before the final norm, of sequences (batch, rows) from position 0."""
        x = self.embedding[tokens]
        cosine, sine = self.rotary.rows(0, tokens.shape[1])
        for block in self.blocks:
            queries, keys, values = self.project(x, block, cosine, sine, self.shape)
            x = self.finish(x, causal(queries, keys, values), block, self.shape)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        """What the output matrix is applied to, in `dtype`."""
        return rms_norm(hidden, self.output_norm, self.shape.epsilon).to(self.dtype)


class Cache:
    """Keys and values of all blocks for one batch that grows row by row."""

    def __init__(self, trunk: Trunk, batch: int, rows: int) -> None:
        shape = trunk.shape
        size = (shape.layers, batch, shape.kv_heads, rows, shape.head_size)
        self._trunk = trunk
        self._keys = torch.zeros(size, dtype=trunk.dtype, device=trunk.device)
        self._values = torch.zeros_like(self._keys)

    @staticmethod
    def bytes_per_sequence(shape: Shape, rows: int, dtype: Any) -> int:
        values = 2 * shape.layers * shape.kv_heads * rows * shape.head_size
        return int(values * torch.finfo(dtype).bits // 8)

    def advance(self, tokens: Tensor, position: int) -> Tensor:
        """Logits (batch, vocabulary) in float32 after one more token of every sequence."""
        trunk, shape = self._trunk, self._trunk.shape
        x = trunk.embedding[tokens][:, None]
        cosine, sine = trunk.rotary.rows(position, position + 1)
        groups = shape.heads // shape.kv_heads
        for layer, block in enumerate(trunk.blocks):
            queries, keys, values = trunk.project(x, block, cosine, sine, shape)
            self._keys[layer, :, :, position : position + 1] = keys
            self._values[layer, :, :, position : position + 1] = values
            # The heads of a group are rows of one product with the keys that they share.
            grouped = queries.reshape(len(tokens), shape.kv_heads, groups, shape.head_size)
            attended = functional.scaled_dot_product_attention(
                grouped, self._keys[layer, :, :, : position + 1], self._values[layer, :, :, : position + 1]
            )
            x = trunk.finish(x, attended.reshape(len(tokens), shape.heads, 1, -1), block, shape)
        return (trunk.normed(x[:, 0]) @ trunk.output.t()).float()


def _tensor(model: ModelFile, name: str, *, device: str) -> Tensor:
    """A tensor of a model in float32, queries and keys in the half-split rotary order."""
    info = model.tensors[name]
    rows = model.data(name).reshape(*info.shape[:0:-1], -1)
    values: NDArray[np.float32] = quants.dequantize(rows, info.type).astype(np.float32)
    if name.endswith("attn_q.weight"):
        values = half_split_rows(values, int(model.key("attention.head_count")))
    elif name.endswith("attn_k.weight"):
        values = half_split_rows(values, kv_heads(model))
    return torch.from_numpy(values.copy()).to(device)
