"""A GBNF grammar over the tokens of an answer, with llama.cpp's parser and matcher.

llama.cpp's grammar sampler only goes forward. Here a clone is kept for each position, so that a window can be
checked row by row and a trim finds the state it needs.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compute.bindings import bindings
from engine.compute.logs import SINK, reason
from engine.errors import UsageError

KEPT_STATES = 256
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Grammar:
    """The states of a grammar along one sequence. Generated tokens begin at position `first`."""

    def __init__(self, source: str, vocabulary: Any, n_vocab: int, first: int) -> None:
        self._llama = bindings()
        if "\0" in source:
            raise UsageError("the grammar holds a NUL character")
        with SINK.errors() as errors, _captured_stderr() as printed:
            state = self._llama.llama_sampler_init_grammar(vocabulary, source.encode(), b"root")
        if not state:
            parser_says = [line for line in printed if "error parsing grammar" in line]
            why = reason(parser_says or errors)
            raise UsageError(
                f"the grammar is not usable GBNF: {why}", hint="the rule to begin with is `root`"
            )
        self._first = first
        self._states: dict[int, Any] = {first: state}  # by position of the token that is chosen next
        self._candidates, self._array = candidates_array(np.zeros(n_vocab, dtype=np.float32))

    @property
    def states(self) -> int:
        """How many states are kept."""
        return len(self._states)

    def mask(self, logits: NDArray[np.float32], tokens: Sequence[int], position: int) -> bool:
        """Set `logits` of the tokens that may not stand at `position`, after `tokens[:position]`, to -inf.

        Returns False, and leaves them alone, if those tokens break the grammar already (a wrong draft), or if
        no token of the vocabulary goes on.
        """
        state = self._state(tokens, position)
        if state is None:
            return False
        self._candidates["logit"] = logits
        self._llama.llama_sampler_apply(state, ctypes.byref(self._array))
        if not np.isfinite(self._candidates["logit"]).any():
            return False
        logits[:] = self._candidates["logit"]
        return True

    def allows(self, token: int, tokens: Sequence[int], position: int) -> bool:
        """Whether `token` may stand at `position`, after `tokens[:position]`."""
        state = self._state(tokens, position)
        return state is not None and self._accepts(state, token)

    def trim(self, keep: int) -> None:
        """Forget the states that depend on tokens at positions from `keep` on."""
        for position in [position for position in self._states if position > max(keep, self._first)]:
            self._llama.llama_sampler_free(self._states.pop(position))

    def close(self) -> None:
        while self._states:
            self._llama.llama_sampler_free(self._states.popitem()[1])

    def _state(self, tokens: Sequence[int], position: int) -> Any | None:
        """The state before the token at `position`, made from the nearest one that is kept."""
        known = max(at for at in self._states if at <= position)
        for at in range(known, position):
            if not self._accepts(self._states[at], tokens[at]):
                return None
            state = self._llama.llama_sampler_clone(self._states[at])
            self._llama.llama_sampler_accept(state, tokens[at])
            self._states[at + 1] = state
            if len(self._states) > KEPT_STATES:
                oldest = next(kept for kept in self._states if kept != self._first)
                self._llama.llama_sampler_free(self._states.pop(oldest))
        return self._states[position]

    def _accepts(self, state: Any, token: int) -> bool:
        """Whether a token may come next. llama.cpp ends the process if it is given one that may not."""
        candidate, array = candidates_array(np.zeros(1, dtype=np.float32))
        candidate["id"] = token
        self._llama.llama_sampler_apply(state, ctypes.byref(array))
        return bool(np.isfinite(candidate["logit"][0]))


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Lines that go to file descriptor 2 meanwhile: llama.cpp's grammar parser prints what is wrong there."""
    lines: list[str] = []
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines()


def candidates_array(logits: NDArray[np.float32]) -> tuple[NDArray[Any], Any]:
    """Token ids 0 to n with these logits, and llama.cpp's `llama_token_data_array` over that memory."""
    candidates = np.zeros(len(logits), dtype=_CANDIDATE)
    candidates["id"] = np.arange(len(logits), dtype=np.int32)
    candidates["logit"] = logits
    array = bindings().llama_token_data_array()
    array.data = ctypes.cast(candidates.ctypes.data, type(array.data))
    array.size = len(candidates)
    array.selected = -1
    return candidates, array
