"""The decode loop of one request: which windows to send, and which tokens their replies commit.

The caller (the coordinator) prefills every prompt token except the last, then drives the loop:

    loop = DecodeLoop(plan, context)
    actions = loop.start(now)
    while actions.finished is None:
        send CancelEpoch(actions.cancel_epoch) if it is not None, then a VerifyWindow for each of actions.windows
        show actions.committed and actions.done
        actions = loop.on_reply(reply of the oldest window under way, now)

- Plain decoding is the same loop with windows of one row: the newest committed token, which is the only
  committed token that is in no KV cache yet.
- `finished` comes once, in the last `Actions`: every window was answered by then, stale ones included, so
  nothing of the request is left on any link. `stop_reason` is known earlier, as soon as the last token is
  committed.
- `cancel(now)` ends the request where it is; replies under way still have to be fed to `on_reply`.
- `restart(now)` forgets every window under way (the stages that held them are gone) and goes on from the
  committed tokens; the caller has prefilled `history[:-1]` on the new stages before.
- `kv_length` positions are right in every cache once the request has finished. Stages may hold more: the
  caller sends TrimSession(keep=kv_length) before it uses the caches for anything else than a longer history.
- An end-of-generation token is committed and counted (`CommittedToken.ends`), but is no part of the text.
  A stop string ends with the token that completes it, which is committed as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config.plan import SpeculationPlan
from engine.errors import ProtocolError
from engine.protocol.messages import PredictedTokens
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate, Stream, spans
from engine.speculation.types import (
    Actions,
    CommittedToken,
    FinishReason,
    LoopContext,
    Origin,
    Rejection,
    WindowOutcome,
    WindowPlan,
)


@dataclass(slots=True)
class _Flight:
    """A window under way. Its drafts begin at position `first_draft`."""

    plan: WindowPlan
    sent_at: float
    first_draft: int
    accepted: int = 0
    stale: bool = False


class DecodeLoop:
    """See the module docstring. Pure: no input or output, no clock; time comes in as `now`."""

    def __init__(self, plan: SpeculationPlan, context: LoopContext) -> None:
        if not context.prompt:
            raise ValueError("a prompt has at least one token")
        self.plan = plan
        self.history = list(context.prompt)
        self.statistics = Statistics()
        self.stop_reason: FinishReason | None = None
        self.next_window = context.first_window
        self.next_epoch = context.first_epoch
        self._context = context
        self._flights: deque[_Flight] = deque()
        self._stream = Stream()
        self._epoch = context.first_epoch
        self._clock = 0.0
        self._finished = False
        self.statistics.pipeline.depth_max = 1

    # What the caller may ask

    @property
    def kv_length(self) -> int:
        """Positions whose rows every stage has computed from committed tokens."""
        return len(self.history) - 1

    @property
    def in_flight(self) -> int:
        """Windows under way, stale ones included."""
        return len(self._flights)

    # What the caller tells

    def start(self, now: float) -> Actions:
        """The first windows; may finish at once when no token fits."""
        self._clock = now
        self.stop_reason = self._exhausted()
        return self._actions(now)

    def on_reply(self, reply: PredictedTokens, now: float, *, direct: bool = True) -> Actions:
        """Commit what the reply of the oldest window yields and say what to send next.

        Raises ProtocolError when it is not the reply of that window.
        """
        self._advance_clock(now)
        flight = self._flights.popleft() if self._is_expected(reply) else None
        assert flight is not None
        if direct:
            self.statistics.direct_replies += 1
        else:
            self.statistics.fallback_replies += 1
        if flight.stale:
            self._count_stale(reply)
            return self._actions(now, done=_outcome(flight, None, now))
        committed, rejected = self._commit(flight, reply.predictions)
        cancel = self._drop_later_windows() if rejected or self.stop_reason else None
        return self._actions(
            now, cancel_epoch=cancel, committed=committed, done=_outcome(flight, rejected, now)
        )

    def cancel(self, now: float) -> Actions:
        """End the request where it is. Without windows under way it is finished at once."""
        self._advance_clock(now)
        if self.stop_reason is None:
            self.stop_reason = "cancelled"
        return self._actions(now, cancel_epoch=self._drop_later_windows())

    def restart(self, now: float) -> Actions:
        """Forget every window under way and go on from the committed tokens."""
        self._advance_clock(now)
        self._flights.clear()
        self._stream.clear()
        return self._actions(now)

    def update_plan(self, plan: SpeculationPlan) -> None:
        """Use other settings from the next window on."""
        self.plan = plan

    # Replies

    def _is_expected(self, reply: PredictedTokens) -> bool:
        if not self._flights:
            raise ProtocolError(f"reply to window {reply.window}, but no window is under way")
        flight = self._flights[0]
        expected = flight.plan
        if (reply.window, reply.epoch) != (expected.window, expected.epoch):
            raise ProtocolError(
                f"reply to window {reply.window} of epoch {reply.epoch}, expected window {expected.window} "
                f"of epoch {expected.epoch}: replies of a session must keep the order of its windows"
            )
        if flight.stale:
            return True
        if reply.stale:
            raise ProtocolError(f"window {reply.window} was answered stale, but it was never cancelled")
        if reply.start != expected.start or len(reply.predictions) != len(expected.tokens):
            raise ProtocolError(
                f"window {reply.window}: {len(reply.predictions)} predictions from position {reply.start}, "
                f"expected {len(expected.tokens)} from {expected.start}"
            )
        return True

    def _commit(
        self, flight: _Flight, predictions: Sequence[int]
    ) -> tuple[tuple[CommittedToken, ...], Rejection | None]:
        """The acceptance walk: commit each prediction as long as it is what the next row was computed from."""
        committed: list[CommittedToken] = []
        for actual in predictions:
            candidate = self._stream.first()
            sent = self._stream.sent > 0
            right = candidate is not None and candidate.token == actual
            if candidate is not None and sent:
                origin: Origin = candidate.source if right else "correction"
            else:
                origin = "free" if flight.plan.width else "target"
            committed.append(self._commit_token(actual, origin))
            if candidate is not None and sent and right:
                self._count_accepted(flight, candidate)
            if right:
                self._stream.advance()
            else:
                self._stream.clear()
            if origin == "correction":
                assert candidate is not None
                self.statistics.rejected_windows += 1
                return tuple(committed), Rejection(len(self.history) - 1, candidate.token, actual)
            if self.stop_reason is not None:
                break
        return tuple(committed), None

    def _commit_token(self, token: int, origin: Origin) -> CommittedToken:
        signal = self._context.stop(token)
        self.history.append(token)
        self.statistics.add_committed(origin)
        self.stop_reason = "stop" if signal is not None else self._exhausted()
        return CommittedToken(token, origin, ends=signal == "end")

    def _count_accepted(self, flight: _Flight, candidate: Candidate) -> None:
        """The newest committed token was a draft of this window, or the first one of the window after it."""
        position = len(self.history) - 1
        if position >= flight.plan.start + len(flight.plan.tokens):
            flight = self._flights[0]
        flight.accepted += 1
        self.statistics.add_accepted(candidate.source, position - flight.first_draft)

    def _exhausted(self) -> FinishReason | None:
        if self.statistics.emitted >= self._context.max_tokens:
            return "length"
        if len(self.history) >= self._context.context_limit:
            return "context"
        return None

    def _count_stale(self, reply: PredictedTokens) -> None:
        self.statistics.pipeline.stale_windows += 1
        self.statistics.pipeline.stale_ms += sum(time.compute_us for time in reply.times) / 1000

    def _drop_later_windows(self) -> int | None:
        """Mark the windows of the running epoch stale; the epoch to cancel, if there are any."""
        self._stream.clear()
        live = [flight for flight in self._flights if not flight.stale]
        for flight in live:
            flight.stale = True
        return self._epoch if live else None

    # Windows

    def _actions(
        self,
        now: float,
        *,
        cancel_epoch: int | None = None,
        committed: tuple[CommittedToken, ...] = (),
        done: WindowOutcome | None = None,
    ) -> Actions:
        windows: tuple[WindowPlan, ...] = ()
        finished: FinishReason | None = None
        if self.stop_reason is None:
            windows = self._schedule(now)
        elif not self._flights and not self._finished:
            self._finished = True
            finished = self.stop_reason
        return Actions(cancel_epoch, windows, committed, done, finished)

    def _schedule(self, now: float) -> tuple[WindowPlan, ...]:
        if any(not flight.stale for flight in self._flights):
            return ()
        self._epoch = self.next_epoch
        self.next_epoch += 1
        return (self._send([], now, draft_budget=0, reason="plain"),)

    def _send(self, drafts: Sequence[Candidate], now: float, *, draft_budget: int, reason: str) -> WindowPlan:
        """Plan the first window of an epoch: the newest committed token and then `drafts`."""
        start = len(self.history) - 1
        tokens = (self.history[-1], *(candidate.token for candidate in drafts))
        plan = WindowPlan(
            window=self.next_window,
            epoch=self._epoch,
            start=start,
            tokens=tokens,
            draft_budget=draft_budget,
            width=len(drafts),
            sources=spans(drafts),
            in_flight=len(self._flights) + 1,
            reason=reason,
        )
        self.next_window += 1
        self._flights.append(_Flight(plan, now, start + 1))
        self._count_sent(plan, drafts)
        return plan

    def _count_sent(self, plan: WindowPlan, drafts: Sequence[Candidate]) -> None:
        counters = self.statistics
        counters.windows += 1
        counters.width.add(plan.width)
        counters.drafted_windows += plan.width > 0
        for number, candidate in enumerate(drafts):
            counters.add_proposed(candidate.source, number)
        counters.pipeline.in_flight_max = max(counters.pipeline.in_flight_max, plan.in_flight)

    def _advance_clock(self, now: float) -> None:
        """Integrate the number of windows in flight up to `now`."""
        elapsed = max(0.0, now - self._clock)
        self._clock = now
        self.statistics.pipeline.seconds += elapsed
        self.statistics.pipeline.busy_seconds += elapsed * len(self._flights)


def _outcome(flight: _Flight, rejected: Rejection | None, now: float) -> WindowOutcome:
    plan = flight.plan
    elapsed_ms = (now - flight.sent_at) * 1000
    return WindowOutcome(
        plan.window, plan.epoch, plan.width, flight.accepted, rejected, flight.stale, elapsed_ms
    )
