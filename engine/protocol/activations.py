"""Hidden states on the wire: float32 rows in, bytes out, and back.

- f32: little-endian rows; the only exact type.
- f16: little-endian IEEE half; holds magnitudes up to 65,504.
- q8: blocks of 32 values of a row share one float32 scale = max|x| / 127; all scales of the frame come first
  (`rows x ceil(n_embd / 32)`), then all int8 values (`rows x n_embd`).

A frame with a value that its type cannot hold (beyond 65,504 for f16, beyond 1e38 for q8, not finite for
either) is sent as f32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.protocol.messages import Activations, WireType

F16_MAX = 65_504.0
Q8_MAX = 1e38  # beyond it, 127 x scale could round up to infinity
Q8_BLOCK = 32
_Q8_STEPS = np.float32(127.0)
_Q8_SMALLEST = np.float32(1e-30)  # taken for the largest value of smaller blocks: 127 / x would overflow

Buffer = bytes | bytearray | memoryview


def packed_size(rows: int, n_embd: int, wire: WireType) -> int:
    """Bytes that `rows` rows take on the wire."""
    if wire is WireType.F32:
        return rows * n_embd * 4
    if wire is WireType.F16:
        return rows * n_embd * 2
    return rows * (_blocks(n_embd) * 4 + n_embd)


def fits(activations: Activations, wire: WireType) -> bool:
    """True if `wire` can hold every value."""
    if wire is WireType.F32:
        return True
    largest = max(float(activations.max()), -float(activations.min()))
    bound = F16_MAX if wire is WireType.F16 else Q8_MAX
    return largest <= bound  # False for NaN as well: max() hands a NaN through


def pack(activations: Activations, wire: WireType) -> bytes | memoryview:
    """Bytes of `(rows, n_embd)` float32 rows; the caller has checked `fits`."""
    if wire is WireType.F32:
        return np.ascontiguousarray(activations, dtype="<f4").data.cast("B")
    if wire is WireType.F16:
        return activations.astype("<f2").tobytes()
    scales, values = _quantise(activations)
    return scales.astype("<f4").tobytes() + values.tobytes()


def unpack(data: Buffer, offset: int, rows: int, n_embd: int, wire: WireType) -> Activations:
    """Float32 rows `(rows, n_embd)` from `offset` on: a read-only view of `data` if f32, else a new array."""
    if wire is WireType.F32:
        view: Activations = np.frombuffer(data, "<f4", rows * n_embd, offset).reshape(rows, n_embd)
        return view
    if wire is WireType.F16:
        return np.frombuffer(data, "<f2", rows * n_embd, offset).reshape(rows, n_embd).astype(np.float32)
    blocks = _blocks(n_embd)
    scales = np.frombuffer(data, "<f4", rows * blocks, offset).reshape(rows, blocks)
    values = np.frombuffer(data, np.int8, rows * n_embd, offset + scales.nbytes).reshape(rows, n_embd)
    spread = np.repeat(scales, Q8_BLOCK, axis=1)[:, :n_embd]
    with np.errstate(all="ignore"):  # the scales are the peer's
        return np.ascontiguousarray(values * spread, dtype=np.float32)


def round_trip(activations: Activations, wire: WireType) -> Activations:
    """What the receiver of these rows would compute with."""
    used = wire if fits(activations, wire) else WireType.F32
    rows, n_embd = activations.shape
    return unpack(bytes(pack(activations, used)), 0, rows, n_embd, used)


def _blocks(n_embd: int) -> int:
    return -(-n_embd // Q8_BLOCK)


def _quantise(activations: Activations) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Scales `(rows, blocks)` and values `(rows, n_embd)`, rounded to nearest even."""
    rows, n_embd = activations.shape
    blocks = _blocks(n_embd)
    padded = activations
    if blocks * Q8_BLOCK != n_embd:
        padded = np.zeros((rows, blocks * Q8_BLOCK), np.float32)
        padded[:, :n_embd] = activations
    grouped = padded.reshape(rows, blocks, Q8_BLOCK)
    largest = np.maximum(np.abs(grouped).max(axis=2), _Q8_SMALLEST)
    values = np.rint(grouped * (_Q8_STEPS / largest)[:, :, None]).astype(np.int8)
    return largest / _Q8_STEPS, values.reshape(rows, blocks * Q8_BLOCK)[:, :n_embd]
