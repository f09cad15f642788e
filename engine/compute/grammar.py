"""A GBNF grammar over the tokens of an answer, with llama.cpp's parser and matcher.

llama.cpp's grammar sampler only goes forward. Here a clone is kept for each position, so that a window can be
checked row by row and a trim finds the state it needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compute.bindings import bindings
from engine.errors import UsageError

KEPT_STATES = 256
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Grammar:
    """The states of a grammar along one sequence. Generated tokens begin at position `first`."""

    def __init__(self, source: str, vocabulary: Any, n_vocab: int, first: int) -> None:
        self._llama = bindings()
        if "\0" in source:
            raise UsageError("the grammar holds a NUL character")
        state = self._llama.llama_sampler_init_grammar(vocabulary, source.encode(), b"root")
        if not state:
            raise UsageError(
                "the grammar is not valid GBNF: llama.cpp cannot parse it or finds no rule named root",
                hint="check its rules, and that none begins with itself",
            )
        self._first = first
        self._states: dict[int, Any] = {first: state}  # by position of the token that is chosen next
        self._candidates = np.zeros(n_vocab, dtype=_CANDIDATE)
        self._candidates["id"] = np.arange(n_vocab, dtype=np.int32)

    def mask(self, logits: NDArray[np.float32], tokens: Sequence[int], position: int) -> bool:
        """Set `logits` of the tokens that may not stand at `position`, after `tokens[:position]`, to -inf.

        Returns False, and leaves them alone, if those tokens break the grammar already (a wrong draft).
        """
        state = self._state(tokens, position)
        if state is None:
            return False
        self._candidates["logit"] = logits
        self._apply(state, self._candidates)
        logits[:] = self._candidates["logit"]
        return True

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
            if not self._allows(self._states[at], tokens[at]):
                return None
            state = self._llama.llama_sampler_clone(self._states[at])
            self._llama.llama_sampler_accept(state, tokens[at])
            self._states[at + 1] = state
            if len(self._states) > KEPT_STATES:
                oldest = next(kept for kept in self._states if kept != self._first)
                self._llama.llama_sampler_free(self._states.pop(oldest))
        return self._states[position]

    def _allows(self, state: Any, token: int) -> bool:
        """Whether a token may come next. llama.cpp ends the process if it is given one that may not."""
        candidate = np.array([(token, 0.0, 0.0)], dtype=_CANDIDATE)
        self._apply(state, candidate)
        return bool(np.isfinite(candidate["logit"][0]))

    def _apply(self, state: Any, candidates: NDArray[Any]) -> None:
        array = self._llama.llama_token_data_array()
        pointer = type(array.data)
        array.data = ctypes.cast(candidates.ctypes.data, pointer)
        array.size = len(candidates)
        array.selected = -1
        array.sorted = False
        self._llama.llama_sampler_apply(state, ctypes.byref(array))
