"""The NextN block as it is trained: parameters, and the unrolled steps that drafting takes.

Row p holds the token x[p+1] and a hidden state; it predicts x[p+2]. In the first step the hidden state is the
trunk's h[p]. In step n it is the block's own output of step n-1 in row p-1, as when the engine drafts: then
the cache holds rows of the first step up to p-n+1, one row of each step between, and the row itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray

from engine.training.decoder import Tensor, Trunk, Weights, causal, rms_norm

Arrays = Mapping[str, NDArray[np.float32]]

_OUTPUT_SCALE = 0.05  # of the trunk's last layer, so that the block begins near the identity
_NORMS = {
    "nextn.enorm": "token_norm",
    "nextn.hnorm": "hidden_norm",
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "nextn.shared_head_norm": "output_norm",
}


class Head:
    """Parameters in float32 by name; products are computed in the trunk's type."""

    def __init__(self, trunk: Trunk, arrays: Arrays | None = None) -> None:
        self._trunk = trunk
        made = _initial(trunk) if arrays is None else _from_arrays(arrays, trunk.device)
        self.parameters = {name: tensor.requires_grad_() for name, tensor in made.items()}

    def unroll(self, tokens: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
        """States that the output matrix is applied to, for each step: (batch, rows - 1, width).

        `tokens` are sequences (batch, rows) from position 0 and `hidden` the trunk's states of them.
        """
        trunk, rows = self._trunk, tokens.shape[1] - 1
        embedded, given = trunk.embedding[tokens[:, 1:]], hidden[:, :-1]
        cosine, sine = trunk.rotary.rows(1, rows + 1)
        weights = self._block_weights()
        past: list[tuple[Tensor, Tensor]] = []
        found = []
        for _ in range(steps):
            x = self._fuse(embedded, given)
            queries, keys, values = trunk.project(x, weights, cosine, sine, trunk.shape)
            past.append((keys, values))
            x = trunk.finish(x, _attend(queries, past), weights, trunk.shape)
            found.append(rms_norm(x, self.parameters["output_norm"], trunk.shape.epsilon).to(trunk.dtype))
            # Row 0 has no row before it: it keeps the trunk's state, and counts for nothing much.
            given = torch.cat([hidden[:, :1], x[:, :-1]], 1)
        return found

    def _fuse(self, embedded: Tensor, given: Tensor) -> Tensor:
        """The block's input: normed token embedding and normed hidden state, in this order, projected."""
        epsilon, dtype = self._trunk.shape.epsilon, self._trunk.dtype
        token = rms_norm(embedded, self.parameters["token_norm"], epsilon)
        state = rms_norm(given, self.parameters["hidden_norm"], epsilon)
        fused = torch.cat([token, state], -1).to(dtype)
        return (fused @ self.parameters["fusion"].to(dtype).t()).float()

    def _block_weights(self) -> Weights:
        matrices = ("qkv", "attn_output", "gate_up", "ffn_down")
        norms = ("attn_norm", "ffn_norm")
        return {name: self.parameters[name].to(self._trunk.dtype) for name in matrices} | {
            name: self.parameters[name] for name in norms
        }

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The block under its GGUF names, without the `blk.N.` prefix."""
        values = {name: tensor.detach().float().cpu().numpy() for name, tensor in self.parameters.items()}
        gate, up = np.split(values["gate_up"], 2)
        matrices = {
            "nextn.eh_proj": values["fusion"],
            "attn_qkv": values["qkv"],
            "attn_output": values["attn_output"],
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": values["ffn_down"],
        }
        named = matrices | {gguf: values[ours] for gguf, ours in _NORMS.items()}
        return {f"{name}.weight": np.ascontiguousarray(array) for name, array in named.items()}


def _attend(queries: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of the newest step. `past` holds keys and values of all steps, the newest last."""
    if len(past) == 1:
        return causal(queries, *past[0])
    keys, values = (torch.cat(parts, 2) for parts in zip(*past, strict=True))
    groups = queries.shape[1] // keys.shape[1]
    mask = unrolled_mask(queries.shape[2], len(past), str(queries.device))
    return functional.scaled_dot_product_attention(
        queries, keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1), attn_mask=mask
    )


def unrolled_mask(rows: int, steps: int, device: str) -> Tensor:
    """What rows of step `steps` see of the keys of all steps, side by side: (rows, steps * rows) booleans."""
    ages = torch.arange(rows, device=device)[:, None] - torch.arange(rows, device=device)[None, :]
    later = [ages == steps - step for step in range(2, steps + 1)]
    return torch.cat([ages >= steps - 1, *later], 1)


def _initial(trunk: Trunk) -> dict[str, Tensor]:
    """The trunk's last layer, of which little is added to the hidden state at first."""
    width, last = trunk.shape.width, trunk.blocks[-1]
    generator = torch.Generator().manual_seed(0)
    token_part = torch.randn(width, width, generator=generator) * 0.02
    fusion = torch.cat([token_part, torch.eye(width)], 1).to(trunk.device)
    copied = {name: weight.float().clone() for name, weight in last.items()}
    for name in ("attn_output", "ffn_down"):
        copied[name] *= _OUTPUT_SCALE
    ones = torch.ones(width, device=trunk.device)
    return copied | {
        "fusion": fusion,
        "token_norm": ones.clone(),
        "hidden_norm": ones.clone(),
        "attn_norm": ones.clone(),
        "ffn_norm": ones.clone(),
        "output_norm": trunk.output_norm.clone(),
    }


def _from_arrays(arrays: Arrays, device: str) -> dict[str, Tensor]:
    def get(name: str) -> Any:
        return torch.from_numpy(np.ascontiguousarray(arrays[f"{name}.weight"])).to(device).clone()

    return {
        "fusion": get("nextn.eh_proj"),
        "qkv": get("attn_qkv"),
        "attn_output": get("attn_output"),
        "gate_up": torch.cat([get("ffn_gate"), get("ffn_up")]),
        "ffn_down": get("ffn_down"),
        **{ours: get(gguf) for gguf, ours in _NORMS.items()},
    }
