"""The windows of an answer as its record keeps them: what each was, and what it took at each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.events import DraftReceived, Event, WindowDone, WindowSent

Packed = tuple[int, ...]
"""A window in a record: rows, replies before it was sent, 1 if it was sent when the draft behind the last of
them had come, 1 if it was stale, tokens drafted, 1 if they came behind its reply, the microseconds that
drafting took, and then those of compute, drafting apart, at each stage that computed it."""

_BEFORE_STAGES = 7


@dataclass(frozen=True, slots=True)
class Window:
    """One window of an answer. Milliseconds.

    The first one ends the prompt, and an answer is timed from its reply on: of what it took, only a draft
    behind that reply is recorded.
    """

    rows: int
    after: int  # replies when it was sent, 0 for the first window alone
    joins: bool  # it was sent when the draft behind the last of them had come
    stale: bool
    drafted: int
    behind: bool  # its draft came behind its reply
    draft_ms: float
    stage_ms: tuple[float, ...]  # a stale window may not have been computed by all stages, or by none


def unpacked(windows: Sequence[Packed]) -> list[Window]:
    """Windows of a record."""
    return [_unpacked(window) for window in windows]


def _unpacked(window: Packed) -> Window:
    rows, after, joins, stale, drafted, behind, draft_us = window[:_BEFORE_STAGES]
    stage_ms = tuple(us / 1000 for us in window[_BEFORE_STAGES:])
    return Window(rows, after, bool(joins), bool(stale), drafted, bool(behind), draft_us / 1000, stage_ms)


class WindowLog:
    """Makes the list of an answer's windows, in their order, from its events.

    Left out are windows that were lost with a stage, which have no reply, and those of which an event was
    dropped.
    """

    def __init__(self) -> None:
        self.windows: list[Packed] = []
        self._sent: dict[int, tuple[int, int, bool]] = {}  # by number: rows, replies before it, `joins`
        self._newest = -1  # the window that was answered last
        self._draft_came = False  # .. and its draft has come behind that

    @property
    def compute_ms(self) -> float:
        """Of all stages, drafting included, mean per window after the first; 0 without such."""
        if len(self.windows) < 2:
            return 0.0
        total_us = sum(sum(window[_BEFORE_STAGES - 1 :]) for window in self.windows)
        return total_us / (len(self.windows) - 1) / 1000

    def add(self, event: Event) -> None:
        """One more event of the answer."""
        if isinstance(event, WindowSent):
            self._sent[event.window] = event.rows, len(self.windows), self._draft_came
        elif isinstance(event, WindowDone) and event.window in self._sent:
            self._add_reply(event)
        elif isinstance(event, DraftReceived) and event.window == self._newest:
            rows, after, joins, stale, _, _, _, *compute_us = self.windows[-1]
            drafted = event.drafted, 1, event.draft_us
            self.windows[-1] = rows, after, joins, stale, *drafted, *compute_us
            self._draft_came = True

    def _add_reply(self, event: WindowDone) -> None:
        rows, after, joins = self._sent.pop(event.window)
        drafted, draft_us = event.drafted, event.draft_us
        compute_us = [stage[2] for stage in event.stages]
        if drafted:
            compute_us[-1] -= draft_us
        if not self.windows:
            drafted, draft_us, compute_us = 0, 0, []
        self.windows.append((rows, after, int(joins), int(event.stale), drafted, 0, draft_us, *compute_us))
        self._newest = event.window
        self._draft_came = False
