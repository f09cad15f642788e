"""Do rows of a window equal single rows, bit for bit? Asked of the machine, the build and the weights.

Speculation gives plain decoding's tokens to the bit only if a row comes out the same in a batch of any size.
Whether it does depends on the kernels that ggml picks. Seen on x86-64 (AVX2), weights by type:

- Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4: always equal;
- K-quants and most IQ types: other from 8 rows on (tiled products), Q4_K from 4 on (repacked weights). Equal
  without these two, as the exact setting has it;
- F32, F16, BF16, and so the router of every mixture of experts: a single row differs from all batches, which
  agree with each other. The exact setting then computes a single row as one of two.

Elsewhere, batches of 64 rows and more have an attention kernel of their own, so that prefill differs from
decode. The exact setting computes at most 63 rows at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from engine.compute.stage import Stage

_SINGLE_ROWS = 5
_WINDOWS = (2, 3, 5, 17)  # below and above the batch sizes at which kernels are known to change


def measure_row_exactness(stage: Stage) -> bool:
    """Run the same rows one by one and in windows, in sequence 0, which is empty before and after.

    In the exact setting single rows are paired if it takes that. It costs about 30 rows of compute.
    """
    equal = _rows_are_equal(stage)
    if not equal and stage.options.exact and stage.max_rows > 1 and stage.slice.rules.can_rollback:
        stage.context.pairs_single_rows = True
        equal = _rows_are_equal(stage)
    return equal


def _rows_are_equal(stage: Stage) -> bool:
    longest = min(_WINDOWS[-1], stage.max_rows, stage.options.context)
    inputs = _Inputs(stage, longest)
    single = [inputs.run(row, row + 1) for row in range(min(_SINGLE_ROWS, longest))]
    stage.release(0)
    for rows in (rows for rows in _WINDOWS if rows <= longest):
        window = inputs.run(0, rows)
        stage.release(0)
        if any(not np.array_equal(window[row], single[row][0]) for row in range(min(rows, len(single)))):
            return False
    return True


class _Inputs:
    """Rows of a fixed input for one stage: tokens, or hidden states of about the size of real ones."""

    def __init__(self, stage: Stage, rows: int) -> None:
        random = np.random.default_rng(0)
        self._stage = stage
        self._tokens = [int(token) for token in random.integers(0, stage.n_vocab, rows)]
        self._hidden = random.standard_normal((rows, stage.n_embd), dtype=np.float32)

    def run(self, start: int, end: int) -> NDArray[np.float32]:
        """Logits or hidden states of the rows, a copy."""
        if self._stage.slice.is_first:
            hidden = self._stage.forward(0, start, tokens=self._tokens[start:end])
        else:
            hidden = self._stage.forward(0, start, hidden=self._hidden[start:end])
        return self._stage.all_logits().copy() if hidden is None else hidden
