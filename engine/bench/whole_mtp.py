"""llama.cpp's whole model with its native MTP block, one drafted token a step: the other yardstick.

As `engine.compute.whole_loop`, it shares nothing with stages but the setting. A step verifies `[c, d]`; one
batch of the NextN block then takes the rows of what was accepted and, last, that of the new token, whose
logits are the next draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.compute.context import ContextRequest, Hidden, LlamaContext, LoadedModel, Outputs
from engine.compute.options import ComputeOptions
from engine.errors import ContextFull


@dataclass(frozen=True, slots=True)
class MtpRun:
    """What the loop said, how long it took, and how its drafts did."""

    tokens: tuple[int, ...]
    prompt_ms: float  # up to the first token
    predicted_ms: float  # all tokens after the first
    proposed: int
    accepted: int


class MtpLoop:
    """A model loaded once for any number of greedy runs with one draft a step."""

    def __init__(
        self,
        model_path: Path,
        *,
        context: int,
        threads: int = 1,
        exact: bool = False,
        gpu_layers: int = 0,
    ) -> None:
        self._options = ComputeOptions(context=context, threads=threads, exact=exact, gpu_layers=gpu_layers)
        with ExitStack() as opened:
            model = LoadedModel(model_path, gpu_layers=gpu_layers, exact=exact)
            opened.callback(model.close)
            self._trunk = LlamaContext(model, ContextRequest(self._options))
            opened.callback(self._trunk.close)
            self._trunk.provide_hidden_states(True)
            self._head = LlamaContext(model, ContextRequest(self._options, mtp_of=self._trunk))
            opened.callback(self._head.close)
            self._head.provide_hidden_states(True, of_outputs=True)
            self._resources = opened.pop_all()

    def __enter__(self) -> MtpLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self, prompt: Sequence[int], n: int, is_end: Callable[[int], bool] = lambda token: False
    ) -> MtpRun:
        """Up to `n` tokens after the prompt, the end token included if one comes. Raises ContextFull."""
        if len(prompt) + n + 1 > self._options.context:
            raise ContextFull(f"{len(prompt)} + {n} tokens do not fit in {self._options.context}")
        self._trunk.trim(0, 0)
        self._head.trim(0, 0)
        begun = time.perf_counter()
        tokens = [self._prefill(prompt)]
        first = time.perf_counter()
        position, proposed, accepted = len(prompt), 0, 0
        draft = self._draft(position, tokens[-1:], self._last_hidden)
        while len(tokens) < n and not is_end(tokens[-1]):
            self._trunk.decode(0, position, 2, Outputs.ALL, tokens=(tokens[-1], draft))
            said = self._trunk.logits().argmax(axis=1).tolist()
            proposed += 1
            new = said[:1]
            if said[0] == draft and len(tokens) + 1 < n and not is_end(draft):
                accepted += 1
                new = said
            else:
                self._trunk.trim(0, position + 1)
            tokens += new
            draft = self._draft(position + 1, new, self._trunk.hidden_states(2)[: len(new)])
            position += len(new)
        ended = time.perf_counter()
        return MtpRun(tuple(tokens), (first - begun) * 1e3, (ended - first) * 1e3, proposed, accepted)

    def close(self) -> None:
        self._resources.close()

    def _prefill(self, prompt: Sequence[int]) -> int:
        """Both caches take the prompt; returns the first token."""
        rows = self._trunk.max_rows
        for start in range(0, len(prompt), rows):
            chunk = prompt[start : start + rows]
            self._trunk.decode(0, start, len(chunk), Outputs.LAST, tokens=chunk)
            hidden = self._trunk.hidden_states(len(chunk)).copy()
            # A row of the head pairs a token with the hidden state before it.
            following = prompt[start + 1 : start + 1 + len(chunk)]
            if following:
                self._head.decode(
                    0,
                    start + 1,
                    len(following),
                    Outputs.NONE,
                    tokens=following,
                    hidden=hidden[: len(following)],
                )
            self._last_hidden: Hidden = hidden[-1:]
        return int(self._trunk.logits()[0].argmax())

    def _draft(self, position: int, tokens: Sequence[int], hidden: Hidden) -> int:
        """Feed tokens from a position on, each with the hidden state before it; what may follow the last."""
        self._head.trim(0, position)
        self._head.decode(0, position, len(tokens), Outputs.LAST, tokens=tokens, hidden=hidden.copy())
        return int(self._head.logits()[0].argmax())
