"""The plain llama.cpp loop: one process, the whole model, greedy, one token a step.

The yardstick of tests and of the bench. It shares nothing with `Stage` but the setting: flash attention on
and the same threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compute.bindings import FLASH_ATTENTION_ON, bindings
from engine.compute.context import LoadedModel
from engine.compute.options import UNTILED_ROWS
from engine.errors import BackendError, ContextFull


@dataclass(frozen=True, slots=True)
class PlainRun:
    """What the loop said, and how long it took."""

    tokens: tuple[int, ...]
    prompt_ms: float  # up to the first token
    predicted_ms: float  # all tokens after the first


class PlainLoop:
    """A model loaded once for any number of plain greedy runs."""

    def __init__(
        self,
        model_path: Path,
        *,
        context: int,
        threads: int = 1,
        exact: bool = False,
        gpu_layers: int = 0,
        devices: Sequence[int] = (),
    ) -> None:
        """`gpu_layers` and `devices` are those of `LoadedModel`."""
        self._llama = llama = bindings()
        self._context_size = context
        with ExitStack() as opened:
            model = LoadedModel(model_path, gpu_layers=gpu_layers, exact=exact, devices=devices)
            opened.callback(model.close)
            self._n_vocab = model.n_vocab
            parameters = llama.llama_context_default_params()
            parameters.n_ctx = context
            if exact:
                parameters.n_ubatch = UNTILED_ROWS
            parameters.n_threads = 1 if exact else threads
            parameters.n_threads_batch = threads
            parameters.flash_attn_type = FLASH_ATTENTION_ON
            self._context: Any = llama.llama_init_from_model(model.handle, parameters)
            if not self._context:
                raise BackendError(f"llama.cpp cannot make a context for {model_path.name}")
            opened.callback(llama.llama_free, self._context)
            self._resources = opened.pop_all()
        self._max_rows = int(llama.llama_n_batch(self._context))

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self, prompt: Sequence[int], n: int, is_end: Callable[[int], bool] = lambda token: False
    ) -> PlainRun:
        """Up to `n` tokens after the prompt, the end token included if one comes. Raises ContextFull."""
        if len(prompt) + n > self._context_size:
            raise ContextFull(f"{len(prompt)} + {n} tokens do not fit in a context of {self._context_size}")
        begun = time.perf_counter()
        self._prefill(prompt)
        tokens = [self._argmax()]
        first = time.perf_counter()
        while len(tokens) < n and not is_end(tokens[-1]):
            self._decode(tokens[-1:])
            tokens.append(self._argmax())
        ended = time.perf_counter()
        return PlainRun(tuple(tokens), (first - begun) * 1e3, (ended - first) * 1e3)

    def top_two_gap(self, tokens: Sequence[int]) -> float:
        """By how much the likeliest next token's logit exceeds the second one's. Raises ContextFull."""
        if len(tokens) > self._context_size:
            raise ContextFull(f"{len(tokens)} tokens do not fit in a context of {self._context_size}")
        self._prefill(tokens)
        second, first = np.partition(self._logits(), -2)[-2:]
        return float(first - second)

    def close(self) -> None:
        self._resources.close()

    def _prefill(self, tokens: Sequence[int]) -> None:
        """Begin anew with these tokens."""
        self._llama.llama_memory_seq_rm(self._llama.llama_get_memory(self._context), -1, -1, -1)
        for start in range(0, len(tokens), self._max_rows):
            self._decode(tokens[start : start + self._max_rows])

    def _decode(self, tokens: Sequence[int]) -> None:
        """Append tokens to the only sequence; logits are of the last one."""
        array = (self._llama.llama_token * len(tokens))(*tokens)
        code = self._llama.llama_decode_public(
            self._context, self._llama.llama_batch_get_one(array, len(tokens))
        )
        if code != 0:
            raise BackendError(f"llama_decode returned {code}")

    def _argmax(self) -> int:
        return int(self._logits().argmax())

    def _logits(self) -> NDArray[np.float32]:
        """Of the last token, a view (n_vocab) until the next one."""
        logits = self._llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self._n_vocab,))


def plain_loop(
    model_path: Path,
    prompt_tokens: Sequence[int],
    n: int,
    threads: int = 1,
    exact: bool = False,
    is_end: Callable[[int], bool] = lambda token: False,
) -> tuple[int, ...]:
    """The tokens of one plain greedy run, up to `n`, the end token included if one comes."""
    context = len(prompt_tokens) + n
    with PlainLoop(model_path, context=context, threads=threads, exact=exact) as loop:
        return loop.generate(prompt_tokens, n, is_end).tokens
