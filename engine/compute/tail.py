"""The last stage of a chain: predictions for every row of a window, and drafts of the NextN block.

Everything that has state by position is trimmed together: the trunk's cache, the NextN rows and hidden
states, the tokens before (for penalties), the grammar.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.compute.embedding import check_tokens
from engine.compute.grammar import Grammar
from engine.compute.mtp import DraftHead
from engine.compute.sampler import Sampler
from engine.compute.stage import Stage
from engine.errors import BackendError, ProtocolError
from engine.protocol.messages import ConfigureGeneration, Draft, SamplingSettings


@dataclass(slots=True)
class _Sequence:
    """State of one sequence besides its caches."""

    tokens: list[int] = field(default_factory=list)  # by position, as long as the cache
    sampler: Sampler | None = None  # None: greedy
    drafts: bool = False  # the strategy may ask for drafts: hidden states are worth keeping
    drafts_surely: bool = False  # it will: the NextN block takes the prompt along while other stages compute
    handed_out: tuple[int, tuple[int, ...]] = (0, ())  # the last draft and its position


class Tail:
    """Verifies windows on the last stage (which may be the whole model)."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._sequences = [_Sequence() for _ in range(stage.options.sequences)]
        self._head: DraftHead | None = None
        if stage.slice.native_mtp:
            self._head = DraftHead(stage.model, stage.context, stage.options)
            stage.on_close(self._head.close)
        stage.on_close(self._close_samplers)

    def configure(self, seq: int, settings: ConfigureGeneration) -> None:
        """Set how the next answer of a sequence is drawn, and whether drafts will be asked for.

        Raises UsageError for sampling settings without meaning or a grammar that cannot be parsed.
        """
        state = self._state(seq)
        sampler = self._make_sampler(settings.sampling, settings.prompt_length)
        if state.sampler is not None:
            state.sampler.close()
        state.sampler = sampler
        state.handed_out = (0, ())
        state.drafts_surely = settings.strategy.startswith("mtp")
        state.drafts = state.drafts_surely or settings.strategy == "auto"

    def prefill(
        self,
        seq: int,
        start: int,
        tokens: Sequence[int],
        next_token: int,
        hidden: NDArray[np.float32] | None,
    ) -> None:
        """Take a chunk of the prompt from position `start` on; no logits.

        `hidden` holds the activations of the chunk, None where the stage is the whole model. `next_token`
        follows the chunk: the NextN row that pairs it with the chunk's last hidden state is fed later, when
        it has come as a token itself.
        """
        state = self._state(seq)
        self._run(seq, start, tokens, hidden, "none", state.drafts)
        if self._head is not None and state.drafts_surely:
            self._head.feed(seq, state.tokens)

    def verify(
        self,
        seq: int,
        start: int,
        tokens: Sequence[int],
        hidden: NDArray[np.float32] | None,
        draft_budget: int,
        *,
        last_only: bool = False,
    ) -> tuple[tuple[int, ...], Draft | None]:
        """The target's own token after every row of a window, and a draft of up to `draft_budget` tokens.

        With `last_only` after the last row alone: the end of a prompt.

        The draft follows the tokens that agree with the predictions and the prediction after them. That is a
        guess at what the coordinator will commit; it says so in `position` and `after_token`.
        """
        drafts = draft_budget > 0
        predictions = self.predict(seq, start, tokens, hidden, last_only=last_only, drafts=drafts)
        if last_only:
            start, tokens = start + len(tokens) - 1, tokens[-1:]
        agreed = agreed_rows(tokens, predictions)
        return predictions, self.draft(seq, start + agreed, predictions[agreed - 1], draft_budget)

    def predict(
        self,
        seq: int,
        start: int,
        tokens: Sequence[int],
        hidden: NDArray[np.float32] | None,
        *,
        last_only: bool = False,
        drafts: bool = False,
    ) -> tuple[int, ...]:
        """The first half of `verify`: the target's token after every row. `drafts`: `draft` comes next."""
        state = self._state(seq)
        self._run(seq, start, tokens, hidden, "last" if last_only else "all", state.drafts or drafts)
        rows = 1 if last_only else len(tokens)
        return self._predict(state, start + len(tokens) - rows, rows)

    def draft(self, seq: int, position: int, token: int, budget: int) -> Draft | None:
        """The second half of `verify`: up to `budget` tokens to follow `token`, which the target says at
        `position`. None without a head, or where the context is full."""
        if self._head is None or budget < 1:
            return None
        begun = time.perf_counter()
        state = self._state(seq)
        tokens, probabilities = self._head.draft(seq, [*state.tokens[:position], token], budget)
        if not tokens:
            return None
        state.handed_out = (position + 1, tokens)
        head_us = int((time.perf_counter() - begun) * 1e6)
        return Draft(position + 1, token, tokens, probabilities, head_us)

    def confirms_draft(self, seq: int, position: int, token: int) -> bool:
        """Whether the last draft has `token` at `position`: a draft to follow it there would only repeat what
        the windows of that draft are about to tell."""
        first, tokens = self._state(seq).handed_out
        return 0 <= position - first < len(tokens) and tokens[position - first] == token

    def trim(self, seq: int, keep: int) -> None:
        """Keep the first `keep` positions of a sequence. Raises TrimRefused."""
        self.stage.trim(seq, keep)
        self._forget(seq, keep)

    def release(self, seq: int) -> None:
        """Forget a sequence with its settings."""
        self.stage.release(seq)
        if self._head is not None:
            self._head.release(seq)
        sampler = self._state(seq).sampler
        if sampler is not None:
            sampler.close()
        self._sequences[seq] = _Sequence()

    def _run(
        self,
        seq: int,
        start: int,
        tokens: Sequence[int],
        hidden: NDArray[np.float32] | None,
        logits: Literal["all", "last", "none"],
        record: bool,
    ) -> None:
        state = self._state(seq)
        if hidden is not None and len(hidden) != len(tokens):
            raise ProtocolError(f"{len(tokens)} token ids came with {len(hidden)} rows of activations")
        check_tokens(tokens, self.stage.n_vocab)
        inputs = tokens if self.stage.slice.is_first else None
        record = record and self._head is not None
        if self._head is not None:
            self.stage.keep_hidden_rows(record)
        try:
            self.stage.forward(seq, start, tokens=inputs, hidden=hidden, logits=logits)
        except BackendError:
            self._forget(seq, self.stage.length(seq))
            raise
        if self._head is not None and record:
            self._head.record(seq, start, self.stage.hidden_rows())
        self._forget(seq, start, hidden_rows=not record)
        state.tokens.extend(tokens)

    def _predict(self, state: _Sequence, start: int, rows: int) -> tuple[int, ...]:
        logits = self.stage.all_logits()
        if state.sampler is None:
            return tuple(logits.argmax(axis=1).tolist())
        return tuple(state.sampler.draw(logits[row], state.tokens, start + row + 1) for row in range(rows))

    def _forget(self, seq: int, keep: int, *, hidden_rows: bool = True) -> None:
        """Trim all that is kept besides the trunk's cache."""
        state = self._state(seq)
        del state.tokens[keep:]
        if state.sampler is not None:
            state.sampler.trim(keep)
        if self._head is not None and hidden_rows:
            self._head.trim(seq, keep)

    def _make_sampler(self, settings: SamplingSettings, prompt_length: int) -> Sampler | None:
        if settings.greedy:
            return None
        n_vocab = self.stage.n_vocab
        grammar = None
        if settings.grammar:
            grammar = Grammar(settings.grammar, self.stage.model.vocabulary, n_vocab, prompt_length)
        return Sampler(settings, n_vocab, grammar)

    def _close_samplers(self) -> None:
        for state in self._sequences:
            if state.sampler is not None:
                state.sampler.close()

    def _state(self, seq: int) -> _Sequence:
        if not 0 <= seq < len(self._sequences):
            raise ProtocolError(f"sequence {seq} does not exist: this stage has {len(self._sequences)}")
        return self._sequences[seq]


def agreed_rows(tokens: Sequence[int], predictions: Sequence[int]) -> int:
    """Rows that are bound to be accepted: the first, and each that holds what was predicted before it."""
    agreed = 1
    while agreed < len(tokens) and predictions[agreed - 1] == tokens[agreed]:
        agreed += 1
    return agreed
