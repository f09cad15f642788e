"""One stage: consecutive layers of a model behind hidden states in, hidden states or logits out.

Positions are authoritative: a call that begins before the end of a sequence's cache trims it first, one that
begins after it is an error. So no stage can keep a rejected row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from engine.compute.context import ContextRequest, GraphAccess, Hidden, LlamaContext, LoadedModel, Outputs
from engine.compute.embedding import EmbeddingTable, check_tokens
from engine.compute.exactness import measure_row_exactness
from engine.compute.options import ComputeOptions
from engine.errors import BackendError, ContextFull, ProtocolError, UsageError
from engine.model.pruning import in_use

if TYPE_CHECKING:
    from engine.model.slices import SliceFile


class Stage:
    """A slice of a model, loaded, with a cache for each of `options.sequences` sequences.

    The first stage takes token ids and needs the model's `embeddings`; a whole model takes token ids without;
    every other stage takes hidden states. The last stage gives logits, every other one hidden states.
    Not thread-safe: one thread computes.
    """

    def __init__(
        self, slice: SliceFile, options: ComputeOptions, *, embeddings: EmbeddingTable | None = None
    ) -> None:
        if slice.is_first and not slice.whole and embeddings is None:
            raise UsageError(f"{slice.path.name} is a first stage and needs the model's token embedding")
        self.slice = slice
        self.options = options
        self.n_embd = slice.n_embd
        self._embeddings = embeddings
        self._lengths = [0] * options.sequences
        self._rows = 0  # of the last call
        self._last_only = False  # whether the last call marked its last row only
        self._row_exact: bool | None = None  # not measured yet
        self._captures_layer = not slice.is_last and slice.rules.capture == "layer_output"
        with ExitStack() as opened:
            if not slice.whole:
                opened.enter_context(in_use(slice.path))
            self.model = LoadedModel(
                slice.path,
                gpu_layers=options.gpu_layers,
                gpu_device=options.gpu_device,
                exact=options.exact,
            )
            opened.callback(self.model.close)
            request = ContextRequest(options, graph=self._graph_access(), mrope=slice.rules.mrope)
            self.context = LlamaContext(self.model, request)
            opened.callback(self.context.close)
            if self.model.n_embd != self.n_embd:
                found = self.model.n_embd
                raise BackendError(f"{slice.path.name} has rows of {found} values, not {self.n_embd}")
            self._resources = opened.pop_all()
        self.n_vocab = self._vocabulary_size()
        self.max_rows = self.context.max_rows
        if not slice.is_last and not self._captures_layer:
            self.context.provide_hidden_states(True)
        if options.exact:
            self._row_exact = self.row_exact  # also settles how single rows are computed

    def _graph_access(self) -> GraphAccess | None:
        """What must be read from the graph, or written into it, while llama.cpp computes."""
        rules = self.slice.rules
        output = f"l_out-{rules.last_block}" if self._captures_layer else ""
        input = "" if self.slice.whole else rules.input_tensor
        return GraphAccess(output=output, input=input) if output or input else None

    def _vocabulary_size(self) -> int:
        if self._embeddings is not None and not self.slice.is_last:
            return self._embeddings.n_vocab
        return self.model.n_vocab

    def forward(
        self,
        seq: int,
        start: int,
        *,
        tokens: Sequence[int] | None = None,
        hidden: NDArray[np.float32] | None = None,
        logits: Literal["all", "last", "none"] = "all",
    ) -> Hidden | None:
        """Run rows of a sequence from position `start`; trims the sequence to `start` if it is ahead.

        Takes `tokens` where the slice is first, else `hidden` (rows, n_embd). Returns hidden states (rows,
        n_embd), or None on the last stage, where `logits` says for which rows logits are computed.

        Raises ProtocolError (position gap, wrong input), ContextFull, TrimRefused, BackendError.
        """
        rows = self._check(seq, start, tokens, hidden)
        if start < self._lengths[seq]:
            self.trim(seq, start)
        if tokens is not None and not self.slice.whole:
            assert self._embeddings is not None
            hidden, tokens = self._embeddings.rows(tokens), None
        self._rows = rows
        if self.slice.is_last:
            self._last_only = logits == "last"
            self.context.decode(seq, start, rows, Outputs(logits), tokens=tokens, hidden=hidden)
            result = None
        else:
            result = self._decode_and_capture(seq, start, rows, tokens, hidden)
        self._lengths[seq] = start + rows
        return result

    def _check(self, seq: int, start: int, tokens: Sequence[int] | None, hidden: Hidden | None) -> int:
        """The number of rows, or an error that says what is wrong with the call."""
        self._check_sequence(seq)
        if self.slice.is_first:
            if tokens is None or hidden is not None:
                raise ProtocolError("the first stage takes token ids, not activations")
            rows = len(tokens)
            check_tokens(tokens, self.n_vocab)
        else:
            if hidden is None:
                raise ProtocolError("this stage takes activations, and none came")
            if hidden.ndim != 2 or hidden.shape[1] != self.n_embd or hidden.dtype != np.float32:
                found, wanted = f"{hidden.dtype} {hidden.shape}", f"float32 (rows, {self.n_embd})"
                raise ProtocolError(f"activations are {found}, but must be {wanted}")
            if not hidden.flags.c_contiguous:
                raise ProtocolError("activations are not contiguous")
            rows = hidden.shape[0]
            if not math.isfinite(float(hidden.sum())):  # one pass; finite activations do not overflow it
                raise ProtocolError("activations hold values that are not finite")
        if not 0 < rows <= self.max_rows:
            raise ProtocolError(f"{rows} rows in one message, but this stage takes 1 to {self.max_rows}")
        length = self._lengths[seq]
        if not 0 <= start <= length:
            raise ProtocolError(f"rows begin at position {start}, but the sequence's cache ends at {length}")
        if start + rows > self.options.context:
            raise ContextFull(
                f"position {start + rows} does not fit in the context of {self.options.context} tokens",
                hint="start a new conversation or raise the context",
            )
        return rows

    def _decode_and_capture(
        self, seq: int, start: int, rows: int, tokens: Sequence[int] | None, hidden: Hidden | None
    ) -> Hidden:
        if self._captures_layer:
            self.context.decode(seq, start, rows, Outputs.ALL, tokens=tokens, hidden=hidden)
            return self.context.layer_rows(rows)
        # NextN rows are taken before the head: no row needs logits.
        self.context.decode(seq, start, rows, Outputs.NONE, tokens=tokens, hidden=hidden)
        return self.context.hidden_states(rows).copy()

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits after a row of the last call, a view (n_vocab) that the next call overwrites."""
        if not (self._rows - 1 if self._last_only else 0) <= row < self._rows:
            raise BackendError(f"the last call gave no logits for row {row}")
        marked: NDArray[np.float32] = self.context.logits()[0 if self._last_only else row]
        return marked

    def all_logits(self) -> NDArray[np.float32]:
        """Logits of the marked rows of the last call, a view (marked rows, n_vocab)."""
        return self.context.logits()

    def keep_hidden_rows(self, wanted: bool) -> None:
        """Last stage with a NextN block: whether the next calls also give `hidden_rows`."""
        self.context.provide_hidden_states(wanted)

    def hidden_rows(self) -> Hidden:
        """Hidden states of all rows of the last call for the NextN block, a view (rows, n_embd)."""
        return self.context.hidden_states(self._rows)

    @property
    def row_exact(self) -> bool:
        """Whether rows of a window equal single rows, bit for bit.

        Measured when asked for the first time, which must be before a sequence is in use.
        """
        if self._row_exact is None:
            self._row_exact = self.options.row_exact and measure_row_exactness(self)
        return self._row_exact

    def length(self, seq: int) -> int:
        """Tokens in the cache of a sequence."""
        self._check_sequence(seq)
        return self._lengths[seq]

    def trim(self, seq: int, keep: int) -> None:
        """Keep the first `keep` positions; nothing happens if there are no more. Raises TrimRefused."""
        self._check_sequence(seq)
        if keep < 0:
            raise ProtocolError(f"cannot keep {keep} positions")
        if keep < self._lengths[seq]:
            self.context.trim(seq, keep)
            self._lengths[seq] = keep

    def release(self, seq: int) -> None:
        """Forget a sequence; its number can be used for another one."""
        self.trim(seq, 0)

    def on_close(self, release: Callable[[], None]) -> None:
        """Have something that depends on this stage's context freed before it."""
        self._resources.callback(release)

    def close(self) -> None:
        """Free contexts and weights. Any later call that computes raises BackendError."""
        self._resources.close()

    def _check_sequence(self, seq: int) -> None:
        if not 0 <= seq < self.options.sequences:
            raise ProtocolError(f"sequence {seq} does not exist: this stage has {self.options.sequences}")
