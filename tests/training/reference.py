"""The dense llama block and the NextN block in numpy and float64, written for reading, not for speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gguf import quants
from numpy.typing import NDArray

from engine.model.file import ModelFile
from engine.model.nextn import half_split_rows, head_size, kv_heads, rope_base

Array = NDArray[np.float64]


class ReferenceModel:
    """A model of the architecture llama with a head for it."""

    def __init__(self, model: ModelFile, head: Mapping[str, NDArray[np.float32]]) -> None:
        self._weights = {name: _values(model, name) for name in model.tensors}
        self._head = {name: array.astype(np.float64) for name, array in head.items()}
        self._heads, self._kv_heads = int(model.key("attention.head_count")), kv_heads(model)
        self._size, self._base, self._layers = head_size(model), rope_base(model), model.n_layers
        self._epsilon = float(model.key("attention.layer_norm_rms_epsilon"))

    def trunk(self, tokens: Sequence[int]) -> Array:
        """States before the final norm, (rows, width)."""
        x = self._weights["token_embd.weight"][list(tokens)]
        for layer in range(self._layers):
            prefix = f"blk.{layer}."
            weights = {
                name.removeprefix(prefix): value
                for name, value in self._weights.items()
                if name.startswith(prefix)
            }
            for name, heads in (("attn_q.weight", self._heads), ("attn_k.weight", self._kv_heads)):
                weights[name] = half_split_rows(weights[name], heads)
            weights["attn_qkv.weight"] = np.concatenate(
                [weights[f"attn_{part}.weight"] for part in ("q", "k", "v")]
            )
            x = self._block(x, weights, first_position=0)
        return x

    def logits(self, hidden: Array, norm: Array | None = None) -> Array:
        norm = self._weights["output_norm.weight"] if norm is None else norm
        output = self._weights.get("output.weight", self._weights["token_embd.weight"])
        return self._normed(hidden, norm) @ output.T

    def block_logits(self, tokens: Sequence[int], hidden: Array) -> Array:
        """What the NextN block says after the last token: row p pairs x[p+1] with h[p]."""
        embedded = self._weights["token_embd.weight"][list(tokens[1:])]
        fused = np.concatenate(
            [
                self._normed(embedded, self._head["nextn.enorm.weight"]),
                self._normed(hidden[:-1], self._head["nextn.hnorm.weight"]),
            ],
            axis=1,
        )
        x = self._block(fused @ self._head["nextn.eh_proj.weight"].T, self._head, first_position=1)
        return self.logits(x, self._head["nextn.shared_head_norm.weight"])[-1]

    def _block(self, x: Array, weights: Mapping[str, Array], first_position: int) -> Array:
        fused = self._normed(x, weights["attn_norm.weight"]) @ weights["attn_qkv.weight"].T
        rows, parts = len(x), fused.reshape(len(x), -1, self._size).swapaxes(0, 1)
        queries, keys, values = np.split(parts, [self._heads, self._heads + self._kv_heads])
        queries, keys = (self._rotated(part, first_position) for part in (queries, keys))
        groups = self._heads // self._kv_heads
        keys, values = np.repeat(keys, groups, axis=0), np.repeat(values, groups, axis=0)
        scores = queries @ keys.swapaxes(1, 2) / np.sqrt(self._size)
        scores[:, np.triu(np.ones((rows, rows), dtype=bool), 1)] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (scores / scores.sum(-1, keepdims=True)) @ values
        x = x + attended.swapaxes(0, 1).reshape(rows, -1) @ weights["attn_output.weight"].T
        normed = self._normed(x, weights["ffn_norm.weight"])
        gate, up = (normed @ weights[f"ffn_{part}.weight"].T for part in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ weights["ffn_down.weight"].T

    def _normed(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self._epsilon) * weight

    def _rotated(self, x: Array, first_position: int) -> Array:
        half = self._size // 2
        positions = np.arange(first_position, first_position + x.shape[1])[:, None]
        angles = positions / self._base ** (np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def _values(model: ModelFile, name: str) -> Array:
    info = model.tensors[name]
    rows = model.data(name).reshape(*info.shape[:0:-1], -1)
    return quants.dequantize(rows, info.type).astype(np.float64)
