"""The decode loop of one request: which windows to send, and which tokens their replies commit.

The caller (the coordinator) prefills every prompt token except the last, then drives the loop:

    loop = DecodeLoop(plan, context)
    actions = loop.start(now)
    while actions.finished is None:
        send CancelEpoch(actions.cancel_epoch), unless None, and a VerifyWindow for each of actions.windows
        show actions.committed and actions.done
        actions = loop.on_reply(reply of the oldest window under way, now)

- `start`'s only window holds the last token of the prompt and no drafts: the caller may compute its row in
  one batch with the rows before it, as the end of the prefill. So does `restart` before the first token.
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

from collections.abc import Sequence

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft, PredictedTokens
from engine.speculation.pipeline import Flight
from engine.speculation.policies import Verified
from engine.speculation.scheduler import Scheduler
from engine.speculation.statistics import Statistics
from engine.speculation.strategies import Resolved
from engine.speculation.stream import Candidate
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


class DecodeLoop:
    """See the module docstring. Pure: no input or output, no clock; time comes in as `now`."""

    def __init__(self, plan: SpeculationPlan, context: LoopContext) -> None:
        if not context.prompt:
            raise ValueError("a prompt has at least one token")
        self.history = list(context.prompt)
        self.statistics = Statistics()
        self.stop_reason: FinishReason | None = None
        self._context = context
        self._scheduler = Scheduler(plan, context, self.history, self.statistics)
        self._pipeline = self._scheduler.pipeline
        self._stream = self._scheduler.stream
        self._finished = False

    # What the caller may ask

    @property
    def strategy(self) -> Resolved:
        """The strategy that runs, and why it is not the one asked for."""
        return self._scheduler.resolved

    @property
    def kv_length(self) -> int:
        """Positions whose rows every stage has computed from committed tokens."""
        return len(self.history) - 1

    @property
    def in_flight(self) -> int:
        """Windows under way, stale ones included."""
        return len(self._pipeline)

    @property
    def rows_not_drafted(self) -> int:
        """Rows of the session that the MTP head has not been fed: the next request passes them on."""
        return self._scheduler.rows_not_drafted

    @property
    def next_window(self) -> int:
        """The first window number that the next request of the session may use."""
        return self._pipeline.next_window

    @property
    def next_epoch(self) -> int:
        """The first epoch that the next request of the session may use."""
        return self._pipeline.next_epoch

    # What the caller tells

    def start(self, now: float) -> Actions:
        """The first windows; may finish at once when no token fits."""
        self._pipeline.start_clock(now)
        self.stop_reason = self._exhausted()
        return self._actions(now, ends_prompt=True)

    def on_reply(self, reply: PredictedTokens, now: float, *, direct: bool = True) -> Actions:
        """Commit what the reply of the oldest window yields and say what to send next.

        Raises ProtocolError when it is not the reply of that window.
        """
        self._pipeline.advance_clock(now)
        flight = self._pipeline.take(reply)
        elapsed_ms = (now - flight.sent_at) * 1000
        self.statistics.add_reply(direct=direct)
        self._learn_costs(flight, reply, elapsed_ms)
        if flight.stale:
            self.statistics.add_stale(reply)
            return self._actions(now, done=_outcome(flight, None, elapsed_ms))
        committed, rejected, cancel = self._commit(flight, reply.predictions)
        if not flight.ends_prompt and not self._scheduler.plain:
            self._tell_policy(flight, reply, elapsed_ms, len(committed), rejected)
        self._scheduler.awaiting = flight.plan.draft_later
        mtp = self._scheduler.drafter.mtp
        if mtp is not None and not self._pipeline.live:
            mtp.offer(reply.draft, self.history)
        done = _outcome(flight, rejected, elapsed_ms)
        return self._actions(now, cancel_epoch=cancel, committed=committed, done=done)

    def on_draft(self, draft: Draft, now: float) -> Actions:
        """A draft came behind the reply to its window: use it if the text has come to just that place."""
        self._pipeline.advance_clock(now)
        self._learn_drafting(draft)
        if self.stop_reason is not None:
            return Actions()
        return Actions(windows=self._scheduler.join(draft, now, self._room()))

    def drafts_ready(self, now: float) -> Actions:
        """The draft model has got on: use what it has."""
        self._pipeline.advance_clock(now)
        return self._actions(now)

    def cancel(self, now: float) -> Actions:
        """End the request where it is. Without windows under way it is finished at once."""
        self._pipeline.advance_clock(now)
        if self.stop_reason is None:
            self.stop_reason = "cancelled"
        self._stream.clear()
        return self._actions(now, cancel_epoch=self._pipeline.drop_epoch())

    def restart(self, now: float) -> Actions:
        """Forget every window under way and go on from the committed tokens."""
        self._pipeline.advance_clock(now)
        self._pipeline.forget()
        self._stream.clear()
        self._scheduler.rows_not_drafted = len(self.history)
        return self._actions(now, ends_prompt=not self.statistics.emitted)

    def update_plan(self, plan: SpeculationPlan) -> None:
        """Use other settings from the next window on."""
        self._scheduler.configure(plan)

    # Replies

    def _commit(
        self, flight: Flight, predictions: Sequence[int]
    ) -> tuple[tuple[CommittedToken, ...], Rejection | None, int | None]:
        """The acceptance walk: commit each prediction as long as the next row was computed from it.

        Returns the tokens, the first wrong draft, and the epoch to cancel.
        """
        committed: list[CommittedToken] = []
        for actual in predictions:
            candidate = self._stream.first()
            sent = self._stream.sent > 0
            right = candidate is not None and candidate.token == actual
            rejected: Rejection | None = None
            origin: Origin = "free" if flight.plan.width else "target"
            if candidate is not None and sent:
                origin = candidate.source if right else "correction"
                if not right:
                    rejected = Rejection(len(self.history), candidate.token, actual)
                    self.statistics.rejected_windows += 1
            if candidate is not None:
                self._decide(flight, candidate, right=right, sent=sent)
            committed.append(self._commit_token(actual, origin))
            if rejected or self.stop_reason:
                self._stream.clear()
                return tuple(committed), rejected, self._pipeline.drop_epoch()
        return tuple(committed), None, None

    def _decide(self, flight: Flight, candidate: Candidate, *, right: bool, sent: bool) -> None:
        """The target has decided about the candidate for the next position."""
        self._scheduler.drafter.decided(candidate, right=right, sent=sent)
        if not right:
            self._stream.clear()
            return
        self._stream.advance()
        if sent:
            position = len(self.history)
            holder = flight if position < flight.end else self._pipeline.flights[0]
            holder.accepted += 1
            self.statistics.add_accepted(candidate.source, position - holder.first_draft)

    def _commit_token(self, token: int, origin: Origin) -> CommittedToken:
        signal = self._context.stop(token)
        self.history.append(token)
        self.statistics.add_committed(origin)
        self.stop_reason = "stop" if signal is not None else self._exhausted()
        return CommittedToken(token, origin, ends=signal == "end")

    def _exhausted(self) -> FinishReason | None:
        if self.statistics.emitted >= self._context.max_tokens:
            return "length"
        if len(self.history) >= self._context.context_limit:
            return "context"
        return None

    def _learn_costs(self, flight: Flight, reply: PredictedTokens, elapsed_ms: float) -> None:
        if reply.stale or flight.ends_prompt:
            return
        costs = self._scheduler.costs
        rows, draft = len(flight.plan.tokens), reply.draft
        head_ms = draft.head_us / 1000 if draft is not None else 0.0
        accompanied = flight.plan.in_flight > 1 or len(self._pipeline) > 0
        costs.observe_window(rows, reply.times, elapsed_ms, head_ms=head_ms, accompanied=accompanied)
        if flight.spacing_ms is not None and reply.times and not head_ms:
            costs.observe_spacing(rows, reply.times, flight.spacing_ms)
        if rows == 1 and not head_ms and (flight.beside_drafts or not accompanied):
            costs.observe_beside_drafts(flight.beside_drafts, elapsed_ms)
        if flight.lag_ms is not None:
            costs.observe_lag(rows, flight.lag_ms)
        self._scheduler.rows_not_drafted += rows
        if draft is not None:
            self._learn_drafting(draft)

    def _learn_drafting(self, draft: Draft) -> None:
        """The head has drafted, and been fed whatever it had not seen."""
        if draft.tokens:
            scheduler = self._scheduler
            head_ms = draft.head_us / 1000
            scheduler.costs.observe_drafting(len(draft.tokens), head_ms, scheduler.rows_not_drafted)
            scheduler.rows_not_drafted = 0

    def _tell_policy(
        self,
        flight: Flight,
        reply: PredictedTokens,
        elapsed_ms: float,
        committed: int,
        rejected: Rejection | None,
    ) -> None:
        self.statistics.verified_drafted_windows += flight.plan.width > 0
        queued_ms = reply.times[0].queue_us / 1000 if reply.times else 0.0
        first_ms = reply.times[0].compute_us / 1000 if reply.times else 0.0
        whole = rejected is None and flight.accepted == flight.plan.width
        self._scheduler.policy.verified(
            Verified(
                width=flight.plan.width,
                accepted=flight.accepted,
                committed=committed,
                rejected=rejected is not None,
                continued=(whole and len(self._stream) > 0) if flight.followed else None,
                elapsed_ms=elapsed_ms,
                first_stage_ms=first_ms,
                downstream_ms=max(0.0, elapsed_ms - queued_ms - first_ms),
                probe=flight.probe,
            )
        )

    # Windows

    def _actions(
        self,
        now: float,
        *,
        cancel_epoch: int | None = None,
        committed: tuple[CommittedToken, ...] = (),
        done: WindowOutcome | None = None,
        ends_prompt: bool = False,
    ) -> Actions:
        windows: tuple[WindowPlan, ...] = ()
        finished: FinishReason | None = None
        if self.stop_reason is None:
            if ends_prompt:
                windows = (self._scheduler.first_window(now, self._room()),)
            else:
                windows = self._scheduler.next_windows(now, self._room())
        elif not self._pipeline.flights and not self._finished:
            self._finished = True
            finished = self.stop_reason
        return Actions(cancel_epoch, windows, committed, done, finished)

    def _room(self) -> int:
        """Candidates that can still be of use: the last token of the answer needs no row."""
        tokens = self._context.max_tokens - self.statistics.emitted
        return min(tokens, self._context.context_limit - len(self.history)) - 1


def _outcome(flight: Flight, rejected: Rejection | None, elapsed_ms: float) -> WindowOutcome:
    plan = flight.plan
    return WindowOutcome(
        plan.window, plan.epoch, plan.width, flight.accepted, rejected, flight.stale, elapsed_ms
    )
