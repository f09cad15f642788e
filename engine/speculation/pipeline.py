"""The windows under way: their numbers, their order, which of them have become stale, and how full it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ProtocolError
from engine.protocol.messages import PredictedTokens
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate, spans
from engine.speculation.types import WindowPlan

SPACINGS = 4
"""Times between replies that are averaged: where stages share a device, some come two at a time."""


@dataclass(slots=True)
class Flight:
    """A window under way. Its drafts begin at position `first_draft`."""

    plan: WindowPlan
    sent_at: float
    first_draft: int
    probe: bool = False
    ends_prompt: bool = False  # computed with the rows before it, so its times say nothing about a window
    followed: bool = False  # a candidate came after its last draft
    accepted: int = 0
    stale: bool = False
    spacing_ms: float | None = None  # mean time between the last replies, this one included, of one stream
    joined: bool = False  # its drafts came while the window before it was under way
    lag_ms: float | None = None  # time since the reply of the window that it has joined
    beside_drafts: int = 0  # that the head has made while it was under way

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.plan.start + len(self.plan.tokens)


class Pipeline:
    """First in, first out. Windows of one epoch continue each other; a new epoch starts behind stale ones."""

    def __init__(self, first_window: int, first_epoch: int, statistics: Statistics) -> None:
        self.next_window = first_window
        self.next_epoch = first_epoch
        self.flights: deque[Flight] = deque()
        self.live = 0  # windows of the running epoch
        self._epoch = first_epoch
        self._statistics = statistics
        self._clock = 0.0
        self._stream_depth = 0  # windows allowed while a stream is fed, 0 when none is
        self._replies: deque[float] = deque(maxlen=SPACINGS + 1)  # when the last ones of one epoch came
        self._replied_epoch = -1

    def __len__(self) -> int:
        return len(self.flights)

    # Sending

    def begin_epoch(self) -> None:
        """The next window is the first of a new epoch."""
        self._epoch = self.next_epoch
        self.next_epoch += 1

    def send(
        self,
        start: int,
        tokens: tuple[int, ...],
        drafts: Sequence[Candidate],
        now: float,
        *,
        draft_budget: int,
        draft_later: bool = False,
        reason: str,
        probe: bool,
    ) -> WindowPlan:
        """Number a window and put it under way; its last `len(drafts)` rows are drafts."""
        plan = WindowPlan(
            window=self.next_window,
            epoch=self._epoch,
            start=start,
            tokens=tokens,
            draft_budget=draft_budget,
            width=len(drafts),
            sources=spans(drafts),
            in_flight=len(self.flights) + 1,
            reason=reason,
            draft_later=draft_later,
        )
        self.next_window += 1
        self.flights.append(Flight(plan, now, start + len(tokens) - len(drafts), probe))
        self.live += 1
        self._statistics.add_window(plan, drafts)
        return plan

    # Replies

    def take(self, reply: PredictedTokens) -> Flight:
        """The window that this reply answers, which is the oldest; raises ProtocolError otherwise.

        The clock has been advanced to the moment of the reply.
        """
        if not self.flights:
            raise ProtocolError(f"reply to window {reply.window}, but no window is under way")
        flight = self.flights[0]
        plan = flight.plan
        if (reply.window, reply.epoch) != (plan.window, plan.epoch):
            raise ProtocolError(
                f"reply to window {reply.window} of epoch {reply.epoch}, expected window {plan.window} "
                f"of epoch {plan.epoch}: replies of a session must keep the order of its windows"
            )
        if not flight.stale:
            if reply.stale:
                raise ProtocolError(f"window {reply.window} was answered stale, but was never cancelled")
            if reply.start != plan.start or len(reply.predictions) != len(plan.tokens):
                raise ProtocolError(
                    f"window {reply.window}: {len(reply.predictions)} predictions from position "
                    f"{reply.start}, expected {len(plan.tokens)} from {plan.start}"
                )
            self.live -= 1
            self._note_spacing(flight)
        return self.flights.popleft()

    def _note_spacing(self, flight: Flight) -> None:
        replies = self._replies
        if self._replied_epoch != flight.plan.epoch or flight.sent_at >= replies[-1]:
            replies.clear()  # it was not under way when the reply before it came
            self._replied_epoch = flight.plan.epoch
        if flight.joined and replies:
            flight.lag_ms = (self._clock - replies[-1]) * 1000
        replies.append(self._clock)
        if len(replies) > 2:
            flight.spacing_ms = (self._clock - replies[0]) * 1000 / (len(replies) - 1)

    def drop_epoch(self) -> int | None:
        """Mark what is left of the running epoch stale; the epoch to cancel, None if nothing is left."""
        self._stream_depth = 0
        if not self.live:
            return None
        for flight in self.flights:
            flight.stale = True
        self.live = 0
        return self._epoch

    def forget(self) -> None:
        """The windows under way will never be answered."""
        self.flights.clear()
        self.live = 0
        self._stream_depth = 0

    # Occupancy

    def feed(self, depth: int) -> None:
        """A stream may have `depth` windows under way from now on; 0 when it has ended."""
        self._stream_depth = depth

    def advance_clock(self, now: float) -> None:
        """Integrate the number of windows under way up to `now`."""
        elapsed = max(0.0, now - self._clock)
        self._clock = now
        counters = self._statistics.pipeline
        under_way = len(self.flights)
        counters.seconds += elapsed
        counters.busy_seconds += elapsed * under_way
        if self._stream_depth:
            counters.stream_seconds += elapsed
            counters.stream_busy += elapsed * min(1.0, under_way / self._stream_depth)

    def start_clock(self, now: float) -> None:
        """Time counts from here."""
        self._clock = now
