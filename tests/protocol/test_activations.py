"""What a receiver computes with, for each wire type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.protocol.activations import Q8_BLOCK, fits, pack, packed_size, round_trip
from engine.protocol.messages import WireType
from tests.protocol.samples import rows

shapes = st.tuples(st.integers(1, 4), st.integers(1, 100))
finite = arrays.arrays(np.float32, shapes, elements=st.floats(-1e5, 1e5, width=32))
anything = arrays.arrays(np.float32, shapes, elements=st.floats(width=32))


@given(anything)
def test_f32_is_exact_to_the_bit(activations: np.ndarray) -> None:
    assert round_trip(activations, WireType.F32).tobytes() == activations.tobytes()


@given(anything, st.sampled_from(WireType))
def test_no_value_makes_a_wire_type_fail(activations: np.ndarray, wire: WireType) -> None:
    received = round_trip(activations, wire)
    assert received.shape == activations.shape
    assert received.dtype == np.float32
    if not fits(activations, wire):
        assert received.tobytes() == activations.tobytes()


@given(finite, st.sampled_from(WireType))
def test_the_packed_size_is_known_beforehand(activations: np.ndarray, wire: WireType) -> None:
    if fits(activations, wire):
        assert len(pack(activations, wire)) == packed_size(*activations.shape, wire)


@given(finite)
def test_f16_rounds_to_the_nearest_half(activations: np.ndarray) -> None:
    if fits(activations, WireType.F16):
        expected = activations.astype(np.float16).astype(np.float32)
        assert round_trip(activations, WireType.F16).tobytes() == expected.tobytes()


@given(finite)
def test_q8_is_off_by_at_most_half_a_step_of_its_block(activations: np.ndarray) -> None:
    received = round_trip(activations, WireType.Q8)
    for first in range(0, activations.shape[1], Q8_BLOCK):
        block = activations[:, first : first + Q8_BLOCK]
        step = np.abs(block).max(axis=1, keepdims=True) / 127
        error = np.abs(received[:, first : first + Q8_BLOCK] - block)
        assert (error <= step * 0.5001 + 1e-30).all()


def test_a_large_value_disturbs_only_its_own_block_in_q8() -> None:
    activations = rows(1, n_embd=96)
    activations[0, 40] = 24_856.0
    error = np.abs(round_trip(activations, WireType.Q8) - activations)[0]
    assert error[:32].max() < 0.02
    assert error[64:].max() < 0.02


@pytest.mark.parametrize(("wire", "size"), [(WireType.F32, 2304), (WireType.F16, 1152), (WireType.Q8, 648)])
def test_what_a_row_of_576_costs(wire: WireType, size: int) -> None:
    assert packed_size(1, 576, wire) == size


def test_rows_that_are_not_contiguous_are_written_in_order() -> None:
    wide = rows(4, n_embd=64)
    for wire in WireType:
        every_other = wide[::2, ::2]
        expected = round_trip(np.ascontiguousarray(every_other), wire)
        assert round_trip(every_other, wire).tobytes() == expected.tobytes()
