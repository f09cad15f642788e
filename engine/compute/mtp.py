"""The NextN block of the last stage drafts what the target will say next (native multi-token prediction).

Its row at position p takes token x[p] and the trunk's hidden state h[p-1]; its logits predict x[p+1]. Rows
are fed when a draft is wanted, not before: until then only hidden states are kept, by position, so that a
request that never drafts pays one copy a token, and a trim to any position finds what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.compute.context import ContextRequest, Hidden, LlamaContext, LoadedModel, Outputs
from engine.compute.options import ComputeOptions

MAX_DRAFT = 8


class _Rows:
    """What one sequence has: hidden states of positions [first, end), and the tokens of the rows fed so far.

    The NextN cache holds positions [first + 1, first + 1 + len(fed)).
    """

    def __init__(self, context: int, n_embd: int) -> None:
        self.hidden = np.empty((context, n_embd), dtype=np.float32)  # pages are touched as they are written
        self.first = 0
        self.end = 0
        self.fed: list[int] = []

    @property
    def fed_end(self) -> int:
        return self.first + 1 + len(self.fed)


class DraftHead:
    """The NextN block over the trunk's context, for all sequences of a stage."""

    def __init__(self, model: LoadedModel, trunk: LlamaContext, options: ComputeOptions) -> None:
        self._options = options
        self._n_embd = model.n_embd
        self._context = LlamaContext(model, ContextRequest(options, mtp_of=trunk))
        self._context.provide_hidden_states(True, of_outputs=True)
        self._rows: dict[int, _Rows] = {}

    def record(self, seq: int, start: int, hidden: Hidden) -> None:
        """Keep the trunk's hidden states of rows from position `start` on, replacing what was there."""
        rows = self._rows.get(seq)
        if rows is None:
            rows = self._rows[seq] = _Rows(self._options.context, self._n_embd)
        if not rows.first <= start <= rows.end:  # a gap: positions in between were computed without recording
            self._restart(seq, rows, start)
        self._truncate(seq, rows, start + 1)  # a row at `start` depends on h[start - 1], which stays
        rows.end = start + len(hidden)
        rows.hidden[start : rows.end] = hidden

    def draft(
        self, seq: int, tokens: Sequence[int], budget: int
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Draft up to `budget` tokens after `tokens`, which is the whole sequence from position 0.

        The hidden state before the last token must have been recorded. Rows not fed yet are fed first.
        Returns the drafted tokens and the block's probability of each; none if the context is full.
        """
        position = len(tokens)  # of the first drafted token
        budget = min(budget, MAX_DRAFT, self._options.context - position)
        if budget < 1:
            return (), ()
        self.feed(seq, tokens)
        drafted = [most_likely(self.logits())]
        try:
            while len(drafted) < budget:
                hidden = self._context.hidden_states(1).copy()
                at = position + len(drafted) - 1
                self._context.decode(seq, at, 1, Outputs.LAST, tokens=(drafted[-1][0],), hidden=hidden)
                drafted.append(most_likely(self.logits()))
        finally:
            if budget > 1:  # rows of drafted tokens were made without the trunk's hidden states
                self._context.trim(seq, position)
        guesses, probabilities = zip(*drafted, strict=True)
        return guesses, probabilities

    def feed(self, seq: int, tokens: Sequence[int]) -> None:
        """Feed the rows that are missing up to the last of `tokens`; `logits` are of that one."""
        rows = self._rows[seq]
        # Only the last row can have been fed a token that was a guess, or that was replaced since.
        if rows.fed and rows.fed[-1] != tokens[rows.fed_end - 1]:
            self._truncate(seq, rows, rows.fed_end - 1)
        self._truncate(seq, rows, len(tokens) - 1)
        start = rows.fed_end
        while start < len(tokens):
            end = min(len(tokens), start + self._context.max_rows)
            outputs = Outputs.LAST if end == len(tokens) else Outputs.NONE
            hidden = rows.hidden[start - 1 : end - 1]
            self._context.decode(seq, start, end - start, outputs, tokens=tokens[start:end], hidden=hidden)
            rows.fed.extend(tokens[start:end])
            start = end

    def logits(self) -> NDArray[np.float32]:
        """Logits of the last row fed, a view (n_vocab) until the next one."""
        row: NDArray[np.float32] = self._context.logits()[0]
        return row

    def trim(self, seq: int, keep: int) -> None:
        """Forget everything that depends on positions from `keep` on."""
        rows = self._rows.get(seq)
        if rows is None or keep >= rows.end:
            return
        if keep <= rows.first:
            self._restart(seq, rows, 0)
        else:
            rows.end = keep
            self._truncate(seq, rows, keep)

    def release(self, seq: int) -> None:
        if self._rows.pop(seq, None) is not None:
            self._context.trim(seq, 0)

    def close(self) -> None:
        self._rows.clear()
        self._context.close()

    def _restart(self, seq: int, rows: _Rows, first: int) -> None:
        self._context.trim(seq, 0)
        rows.first = rows.end = first
        rows.fed.clear()

    def _truncate(self, seq: int, rows: _Rows, end: int) -> None:
        """Keep only fed rows at positions before `end`."""
        if end < rows.fed_end:
            self._context.trim(seq, end)
            del rows.fed[max(0, end - rows.first - 1) :]


def most_likely(logits: NDArray[np.float32]) -> tuple[int, float]:
    """The argmax and its probability under a softmax."""
    token = int(logits.argmax())
    return token, 1.0 / float(np.exp(logits - logits[token]).sum(dtype=np.float64))
