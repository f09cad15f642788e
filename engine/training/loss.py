"""How far the block's predictions are from the trunk's, and in which direction they should move.

The loss of a row is (1 - hard) * cross-entropy against the trunk's distribution + hard * cross-entropy
against its most likely token. Logits of a vocabulary are by far the largest arrays here, so they exist for a
few rows at a time and their gradient is taken at once: with q = softmax(logits) it is q - target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.training.decoder import Tensor, maybe_compiled

_CHUNK_VALUES = 1 << 28  # logits that exist at a time


@dataclass(frozen=True, slots=True)
class Distance:
    """Of the rows of each step.

    `gradients` are those of the weighted sum of mean losses with respect to the rows; `right` is the share
    of rows whose most likely token is the trunk's.
    """

    loss: float
    right: tuple[float, ...]
    gradients: tuple[Tensor, ...]


class Distillation:
    """Compares rows with the trunk's through the output matrix (vocabulary, width)."""

    def __init__(self, output: Tensor, *, hard: float, device: str) -> None:
        self._output = output
        self._hard = hard
        self._chunk = max(1, _CHUNK_VALUES // len(output))
        self._row_losses = maybe_compiled(_row_losses, device, dynamic=True)

    def distance(self, target: Tensor, steps: Sequence[Tensor], weights: Sequence[float]) -> Distance:
        """`target` holds the trunk's normed states (rows, width), `steps` the block's, `weights` theirs."""
        rows = max(len(target), 1)
        losses = torch.zeros(len(steps), device=target.device)
        right = torch.zeros(len(steps), device=target.device)
        gradients = [torch.empty_like(step) for step in steps]
        with torch.no_grad():
            for start in range(0, len(target), self._chunk):
                chunk = slice(start, start + self._chunk)
                wanted = target[chunk] @ self._output.t()
                for number, step in enumerate(steps):
                    said = step[chunk] @ self._output.t()
                    loss, hits, slope = self._row_losses(said, wanted, self._hard)
                    losses[number] += loss
                    right[number] += hits
                    gradients[number][chunk] = (slope @ self._output) * (weights[number] / rows)
        total = (losses * torch.tensor(weights, device=losses.device)).sum() / rows
        shares = (right / rows).tolist()
        return Distance(float(total), tuple(shares), tuple(gradients))


def _row_losses(said: Tensor, wanted: Tensor, hard: float) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss, number of rows with the right token, and the gradient with respect to `said`."""
    log_said = torch.log_softmax(said.float(), -1)
    best = wanted.argmax(-1, keepdim=True)
    token = torch.arange(wanted.shape[-1], device=wanted.device)
    target = (1 - hard) * torch.softmax(wanted.float(), -1) + hard * (token == best)
    loss = -(target * log_said).sum()
    right = (said.argmax(-1, keepdim=True) == best).sum()
    return loss, right, (log_said.exp() - target).to(said.dtype)
