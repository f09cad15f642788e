"""What a stage costs on a node: milliseconds of compute, and bytes of memory.

compute(rows) = call + layers(rows) * MiB read + rows * cached * MiB of keys and values attended to
                + head(rows), on the last stage
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from engine.planning.problem import Floats
from engine.planning.profiles import MIB, WINDOW_ROWS, Demand, ModelProfile, NodeProfile

CHUNK_ROWS = 128
"""Rows of the chunk in which `ComputeCosts.prefill_us` is measured."""

_MASK_BYTES = 6  # of a row and cached token: the attention mask in f32 and f16
_CELLS = 256  # llama.cpp rounds a context up to so many tokens


class StageCosts:
    """Costs of layers [first, end) of one model on any node, for one demand."""

    def __init__(self, model: ModelProfile, demand: Demand) -> None:
        self.model = model
        self.demand = demand
        self._read = _sums([layer.read_bytes / MIB for layer in model.layers])
        self._kv = _sums([layer.kv_bytes / MIB for layer in model.layers])
        self._bytes = _sums([self._layer_bytes(index) for index in range(model.n_layers)])

    @property
    def half_way(self) -> float:
        """Cached tokens in the middle of the answer."""
        return self.demand.prompt + self.demand.answer / 2

    def compute_ms(self, node: NodeProfile, first: int, end: int, rows: int) -> float:
        """A window of `rows` rows in the middle of the answer."""
        read, kv = self._read[end] - self._read[first], self._kv[end] - self._kv[first]
        return float(_window_ms(node, read, kv * self.half_way, rows, head=end == self.model.n_layers))

    def chunk_ms(self, node: NodeProfile, first: int, end: int, rows: int, cached: float) -> float:
        """A prefill chunk after `cached` tokens, without the head."""
        read, kv = self._read[end] - self._read[first], self._kv[end] - self._kv[first]
        return float(_layers_ms(node, read, kv * (cached + rows / 2), rows))

    def head_ms(self, node: NodeProfile, rows: int) -> float:
        """The head alone."""
        return _head_ms(node, rows)

    def bytes_of(self, first: int, end: int) -> float:
        """Memory that a stage takes: weights, caches for the context and all sequences, buffers."""
        return float(self._bytes[end] - self._bytes[first] + self._buffers(end == self.model.n_layers))

    def table(self, node: NodeProfile, rows: int) -> Floats:
        """`compute_ms` for all spans, (layers + 1, layers + 1); infinite where the model cannot be cut, or
        the node has no room."""
        n_layers = self.model.n_layers
        read, kv = (sums[None, :] - sums[:, None] for sums in (self._read, self._kv))
        head = np.arange(n_layers + 1)[None, :] == n_layers
        ms = _window_ms(node, read, kv * self.half_way, rows, head=head)
        room = self._bytes[None, :] - self._bytes[:, None]
        room[:, :n_layers] += self._buffers(False)
        room[:, n_layers] += self._buffers(True)
        edges = np.isin(np.arange(n_layers + 1), [0, *self.model.cuts, n_layers])
        allowed = edges[:, None] & edges[None, :] & (read > 0) & (room <= node.free_bytes)
        return np.where(allowed, ms, np.inf)

    def _layer_bytes(self, index: int) -> float:
        layer = self.model.layers[index]
        return layer.weight_bytes + layer.kv_bytes * self._cells + layer.state_bytes * self.demand.sequences

    @property
    def _cells(self) -> int:
        return ceil(self.demand.context / _CELLS) * _CELLS * self.demand.sequences

    def _buffers(self, last: bool) -> float:
        """What a stage takes however many layers it has."""
        model, rows = self.model, self.demand.batch_rows
        row = model.scratch_bytes + _MASK_BYTES * self.demand.context
        if not last:
            return rows * row
        return rows * (row + 2 * model.logits_bytes) + model.head_bytes + model.head_kv_bytes * self._cells


def _sums(values: list[float]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(np.array(values, dtype=np.float64))))


def _window_ms(
    node: NodeProfile, read: Floats, cached: Floats, rows: int, *, head: bool | NDArray[np.bool_]
) -> Floats:
    return _layers_ms(node, read, cached, rows) + np.where(head, _head_ms(node, rows), 0.0)


def _layers_ms(node: NodeProfile, read: Floats, cached: Floats, rows: int) -> Floats:
    """Layers that read `read` MiB of weights, and `cached` MiB of keys and values, for every row."""
    compute = node.compute
    counts, times = (*WINDOW_ROWS, CHUNK_ROWS), (*compute.layer_us, CHUNK_ROWS * compute.prefill_us)
    per_mib = float(np.interp(rows, counts, times)) * max(1.0, rows / CHUNK_ROWS)
    attention = compute.cached_us if rows == 1 else compute.cached_window_us
    return np.asarray((compute.call_us + per_mib * read + rows * attention * cached) / 1000)


def _head_ms(node: NodeProfile, rows: int) -> float:
    """Linear between the measured numbers of rows, and in proportion beyond."""
    us = float(np.interp(rows, WINDOW_ROWS, node.compute.head_us))
    return us * max(1.0, rows / WINDOW_ROWS[-1]) / 1000
