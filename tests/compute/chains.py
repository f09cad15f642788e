"""Stages of one model in one process, the last one behind a `Tail`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice, whole_model
from engine.protocol.messages import ConfigureGeneration, Draft, SamplingSettings


class Chain:
    """A model cut before each layer of `cuts` (none: the whole model as one stage)."""

    def __init__(
        self, model: ModelFile, cuts: Sequence[int], options: ComputeOptions, cache_dir: Path | None = None
    ) -> None:
        edges = [0, *cuts, model.n_layers]
        slices = [whole_model(model)]
        if cuts:
            slices = [ensure_slice(model, first, end, cache_dir=cache_dir) for first, end in pairwise(edges)]
        embeddings = EmbeddingTable(model, slices[0].rules.input_scale)
        self._opened = ExitStack()
        self.stages: list[Stage] = []
        for part in slices:
            looks_up = part.is_first and not part.whole
            self.stages.append(Stage(part, options, embeddings=embeddings if looks_up else None))
            self._opened.callback(self.stages[-1].close)
        self.tail = Tail(self.stages[-1])

    def __enter__(self) -> Chain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def configure(
        self, strategy: str = "auto", sampling: SamplingSettings | None = None, prompt: int = 0, seq: int = 0
    ) -> None:
        settings = ConfigureGeneration(seq, sampling or SamplingSettings(), prompt, strategy)
        self.tail.configure(seq, settings)

    def prefill(self, tokens: Sequence[int], *, start: int = 0, rows: int = 32, seq: int = 0) -> None:
        """Prefill in chunks of `rows`; the token after a chunk is only known if it is in `tokens`."""
        for at in range(0, len(tokens), rows):
            chunk = tokens[at : at + rows]
            after = tokens[at + rows] if at + rows < len(tokens) else 0
            self.tail.prefill(seq, start + at, chunk, after, self._hidden(seq, start + at, chunk))

    def verify(
        self, start: int, tokens: Sequence[int], budget: int = 0, seq: int = 0
    ) -> tuple[tuple[int, ...], Draft | None]:
        return self.tail.verify(seq, start, tokens, self._hidden(seq, start, tokens), budget)

    def logits(self) -> NDArray[np.float32]:
        """A copy of the logits of the last window, (rows, n_vocab)."""
        return self.tail.stage.all_logits().copy()

    def generate(self, prompt: Sequence[int], n: int, budget: int = 0) -> tuple[list[int], int]:
        """`n` tokens after the prompt, in windows of the drafts that come; and how many were right."""
        self.prefill(prompt[:-1])
        position, window = len(prompt) - 1, [prompt[-1]]
        said: list[int] = []
        accepted = 0
        while len(said) < n:
            predictions, draft = self.verify(position, window, budget)
            agreed = 0
            while agreed + 1 < len(window) and predictions[agreed] == window[agreed + 1]:
                agreed += 1
            said += predictions[: agreed + 1]
            accepted += agreed
            position += agreed + 1
            window = [predictions[agreed]]
            if draft is not None:
                assert (draft.position, draft.after_token) == (position + 1, window[0])
                window += draft.tokens
        return said[:n], accepted

    def _hidden(self, seq: int, start: int, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        if len(self.stages) == 1:
            return None
        hidden = self.stages[0].forward(seq, start, tokens=tokens)
        for stage in self.stages[1:-1]:
            hidden = stage.forward(seq, start, hidden=hidden)
        return hidden
