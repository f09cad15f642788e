"""The windows of an answer as its record keeps them: what each was, and what it took at each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.events import Event, WindowDone, WindowSent

Packed = tuple[int, ...]
"""A window in a record: rows, replies before it was sent, 1 if it was stale, tokens drafted behind it, the
microseconds that took, and then those of compute, drafting apart, at each stage that computed it."""

_BEFORE_STAGES = 5


@dataclass(frozen=True, slots=True)
class Window:
    """One window of an answer, the first of which is not recorded: it belongs to the prompt. Milliseconds."""

    rows: int
    after: int  # replies, that to the first window not counted, when it was sent
    stale: bool
    drafted: int
    draft_ms: float
    stage_ms: tuple[float, ...]  # a stale window may not have been computed by all stages, or by none


def unpacked(windows: Sequence[Packed]) -> list[Window]:
    """Windows of a record."""
    return [_unpacked(window) for window in windows]


def _unpacked(window: Packed) -> Window:
    rows, after, stale, drafted, draft_us = window[:_BEFORE_STAGES]
    stage_ms = tuple(us / 1000 for us in window[_BEFORE_STAGES:])
    return Window(rows, after, bool(stale), drafted, draft_us / 1000, stage_ms)


class WindowLog:
    """Makes the list of an answer's windows, in their order, from its events.

    Left out are windows that were lost with a stage, which have no reply, and those of which an event was
    dropped.
    """

    def __init__(self) -> None:
        self.windows: list[Packed] = []
        self._sent: dict[int, tuple[int, int]] = {}  # by number: rows, and replies before it
        self._first_answered = False

    @property
    def compute_ms(self) -> float:
        """Of all stages, drafting included, mean per window; 0 without windows."""
        if not self.windows:
            return 0.0
        total_us = sum(sum(window[_BEFORE_STAGES - 1 :]) for window in self.windows)
        return total_us / len(self.windows) / 1000

    def add(self, event: Event) -> None:
        """One more event of the answer."""
        if isinstance(event, WindowSent):
            self._sent[event.window] = event.rows, len(self.windows)
        elif isinstance(event, WindowDone) and event.window in self._sent:
            rows, after = self._sent.pop(event.window)
            compute_us = [stage[2] for stage in event.stages]
            if event.drafted:
                compute_us[-1] -= event.draft_us
            if self._first_answered:
                done = (rows, after, int(event.stale), event.drafted, event.draft_us, *compute_us)
                self.windows.append(done)
            self._first_answered = True
