"""Plain tokens of a whole model, computed before they are asked for.

Between a reply and the next window lie the coordinator's decision and two hand-overs between threads, in
which the model would idle. A stage that is the whole model knows its own token, so where the next window can
be foreseen - a request that decodes plainly asks for just that token - it goes on at once, and the window
finds its answer when it comes. A token that nobody asks for is a rejected row like any other: positions are
authoritative, so whatever comes next trims it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.errors import SkippyError
from engine.protocol.messages import Draft, VerifyWindow

log = logging.getLogger("skippy.stage")

PLAIN_WINDOWS = 16
"""Plain windows in a row after which the next one is foreseen, for strategies that may draft. Each window
that proves this wrong doubles it: what they cost grows with the logarithm of an answer, what is gained with
its length."""


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The answer to a window, and when it was computed (seconds, `time.perf_counter`)."""

    predictions: tuple[int, ...]
    draft: Draft | None
    begun: float
    ended: float


def foresees(stage: Stage) -> bool:
    """Whether a stage knows its own next input, and can take back a row that nobody asks for."""
    return stage.slice.whole and stage.slice.rules.can_rollback


def verify_now(tail: Tail, seq: int, window: VerifyWindow) -> Verified:
    """The tail's answer to a window, without the draft if that is to come later. Raises what it raises."""
    begun, budget, last_only = time.perf_counter(), window.draft_budget, window.last_only
    rows = seq, window.start, window.tokens, window.activations
    draft = None
    if window.draft_later:
        predictions = tail.predict(*rows, last_only=last_only, drafts=budget > 0)
    else:
        predictions, draft = tail.verify(*rows, budget, last_only=last_only)
    return Verified(predictions, draft, begun, time.perf_counter())


@dataclass(frozen=True, slots=True, eq=False)
class _Next:
    """The row that should be asked for next: `token` at position `start`."""

    start: int
    token: int

    def is_asked_by(self, window: VerifyWindow) -> bool:
        plain = window.draft_budget == 0 and not window.last_only
        return plain and window.start == self.start and window.tokens == (self.token,)


@dataclass(slots=True)
class _Sequence:
    needed: int = 0  # plain windows in a row before the next one is foreseen
    plain: int = 0  # of them so far
    next: _Next | None = None
    verified: Verified | None = None  # of `next`, computed ahead


class RunAhead:
    """Verifies windows by a tail, and computes the next one of the last sequence when there is time."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._sequences: dict[int, _Sequence] = {}
        self._last: int | None = None  # the sequence whose window was verified last

    def configure(self, seq: int, strategy: str) -> None:
        """A new answer: how likely are drafts?"""
        self._sequences[seq] = _Sequence(needed=0 if strategy == "disabled" else PLAIN_WINDOWS)

    def forget(self) -> None:
        """Something else than a window happens to a sequence: what was computed ahead counts no more."""
        self._last = None
        for state in self._sequences.values():
            state.next = state.verified = None

    def verify(self, seq: int, window: VerifyWindow) -> Verified:
        """The tail's answer to a window, perhaps known already. Raises what the tail raises."""
        state = self._sequences.setdefault(seq, _Sequence(needed=PLAIN_WINDOWS))
        foreseen, verified = state.next, state.verified
        state.next = state.verified = None
        if foreseen is not None and foreseen.is_asked_by(window):
            state.plain += 1
        else:
            state.plain = 0
            if verified is not None:
                state.needed = 2 * max(state.needed, PLAIN_WINDOWS)
                verified = None
        if verified is None:
            verified = verify_now(self._tail, seq, window)
        start, rows = window.predicted
        state.next = _Next(start + rows, verified.predictions[-1])
        self._last = seq
        return verified

    def go_on(self) -> None:
        """Compute the window that the last sequence should ask for next. Never fails."""
        seq, self._last = self._last, None
        if seq is None:
            return
        state = self._sequences[seq]
        foreseen = state.next
        if foreseen is None or state.plain < state.needed or self._tail.stage.model.is_end(foreseen.token):
            return
        window = VerifyWindow(session=-1, window=-1, epoch=-1, start=foreseen.start, tokens=(foreseen.token,))
        try:
            state.verified = verify_now(self._tail, seq, window)
        except SkippyError as error:  # a full context, say: told when the window is asked for
            log.debug("a token was not computed ahead: %s", error)
