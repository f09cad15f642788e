"""The compute thread of a stage: one queue of messages in, forwarded messages and replies out.

llama.cpp is called on this thread and nowhere else. The same worker runs inside a stage process and, for
stage 0, inside the engine. Each lane hands in its messages in order; what comes out keeps that order, so the
replies of a session are in window order by construction. Several lanes are served in turn.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.compute.stage import Stage
from engine.compute.tail import Tail, agreed_rows
from engine.errors import Busy, SkippyError
from engine.protocol.messages import (
    Activations,
    CancelEpoch,
    ConfigureGeneration,
    DraftedTokens,
    ErrorMessage,
    Message,
    PredictedTokens,
    Prefill,
    PrefillDone,
    StageTime,
    Stop,
    TrimSession,
    VerifyWindow,
)
from engine.stage.ahead import RunAhead, foresees, verify_now
from engine.stage.sequences import SequenceTable
from engine.stage.turns import Turns

log = logging.getLogger("skippy.stage")

Deliver = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Predicted:
    """How the text of a session goes on behind its last window: with `token` at `position`.

    `whole`: all rows of the window agree with the predictions, so windows may continue its epoch.
    """

    epoch: int
    position: int
    token: int
    whole: bool

    @classmethod
    def of(cls, window: VerifyWindow, predictions: tuple[int, ...]) -> Predicted:
        first, rows = window.predicted
        agreed = agreed_rows(window.tokens[-rows:], predictions)
        return cls(window.epoch, first + agreed, predictions[agreed - 1], whole=agreed == rows)

    def refutes(self, window: VerifyWindow) -> bool:
        """Whether a window continues the epoch with something else."""
        goes_on = self.whole and (window.start, window.tokens[0]) == (self.position, self.token)
        return window.epoch == self.epoch and not goes_on


@dataclass(slots=True, eq=False)
class Lane:
    """One chain's way through this stage. Both callbacks are called on the compute thread.

    `forward` takes what goes to the next stage, `reply` what goes back to the coordinator. `index` is the
    place of this stage in that chain.
    """

    number: int
    index: int
    forward: Deliver
    reply: Deliver
    cancelled: dict[int, int] = field(default_factory=dict)  # session -> newest cancelled epoch
    predicted: dict[int, Predicted] = field(default_factory=dict)  # by session; of the last stage
    closed: bool = False
    submitted: int = 0  # counted by the loop
    taken: int = 0  # counted by the compute thread

    @property
    def waiting(self) -> int:
        """Messages that have been handed in and not begun."""
        return self.submitted - self.taken


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    lane: Lane
    message: Message | None  # None: the lane is gone
    arrived: float


SWITCH_INTERVAL = 5e-5
"""Seconds that a thread may keep the interpreter while another one wants it. The event loop has things to do
when it has handed a window over; with Python's 5 ms the compute thread would wait for all of them."""


class StageWorker:
    """Runs the messages of all lanes, one of each lane in turn, on a thread of its own."""

    def __init__(self, stage: Stage) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.stage = stage
        self.row_exact = stage.row_exact  # measured, so before any sequence is in use
        self._tail = Tail(stage) if stage.slice.is_last else None
        self._ahead = RunAhead(self._tail) if self._tail is not None and foresees(stage) else None
        self._sequences = SequenceTable(stage.options.sequences)
        self._jobs: Turns[_Job] = Turns()
        self._busy_since = 0.0
        self._thread = threading.Thread(target=self._run, name="stage-compute", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Messages that wait for the compute thread."""
        return len(self._jobs)

    @property
    def busy_ms(self) -> int:
        """For how long the present message has been running; 0 when idle."""
        since = self._busy_since
        return int((time.monotonic() - since) * 1000) if since else 0

    @property
    def sessions(self) -> int:
        return len(self._sequences)

    def submit(self, lane: Lane, message: Message) -> None:
        """Queue a message. A cancel takes effect at once: it must overtake the windows that it cancels."""
        if isinstance(message, CancelEpoch):
            newest = lane.cancelled.get(message.session, -1)
            lane.cancelled[message.session] = max(newest, message.epoch)
            return
        if isinstance(message, ConfigureGeneration):
            lane.cancelled.pop(message.session, None)  # epochs count from 0 again
        lane.submitted += 1
        self._jobs.put(lane.number, _Job(lane, message, time.perf_counter()))
        time.sleep(0)  # gives the interpreter away: the compute thread begins now, and not when we are done

    def drop_lane(self, lane: Lane) -> None:
        """The lane is gone: skip what it still has queued and free its sequences."""
        lane.closed = True
        self._jobs.put(lane.number, _Job(lane, None, time.perf_counter()))

    def close(self, timeout: float = 10.0) -> None:
        """End the thread after the present message and free the stage."""
        self._jobs.end()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.stage.close()

    def _run(self) -> None:
        while (job := self._jobs.take()) is not None:
            if self._ahead is not None and not isinstance(job.message, VerifyWindow):
                self._ahead.forget()
            if job.message is None:
                for session in self._sequences.sessions_of(job.lane.number):
                    self._release(job.lane, session)
                continue
            job.lane.taken += 1
            if job.lane.closed:
                continue
            self._busy_since = time.monotonic()
            try:
                self._handle(job.lane, job.message, job.arrived)
                if self._ahead is not None and not self.queued:
                    self._ahead.go_on()
            except SkippyError as error:
                job.lane.reply(self._error(job, error.code, str(error)))
            except Exception as error:  # a fault of ours must reach the coordinator, not end the thread
                log.exception("stage %d: %s failed", job.lane.index, type(job.message).__name__)
                job.lane.reply(self._error(job, "internal", f"{type(error).__name__}: {error}"))
            finally:
                self._busy_since = 0.0

    def _handle(self, lane: Lane, message: Message, arrived: float) -> None:
        if isinstance(message, Prefill | ConfigureGeneration | TrimSession):
            lane.predicted.pop(message.session, None)  # its text goes on otherwise
        match message:
            case VerifyWindow():
                self._verify(lane, message, arrived)
            case Prefill():
                self._prefill(lane, message, arrived)
            case ConfigureGeneration():
                sequence = self._sequences.sequence(lane.number, message.session)
                if self._tail is not None:
                    self._tail.configure(sequence, message)
                    if self._ahead is not None:
                        self._ahead.configure(sequence, message.strategy)
                else:
                    lane.forward(message)
            case TrimSession():
                self._trim(self._sequences.sequence(lane.number, message.session), message.keep)
                if self._tail is None:
                    lane.forward(message)
            case Stop():
                self._release(lane, message.session)
                if self._tail is None:
                    lane.forward(message)
            case _:
                raise SkippyError(f"a stage has no use for {type(message).__name__}", code="protocol")

    def _verify(self, lane: Lane, window: VerifyWindow, arrived: float) -> None:
        stale = window.stale or window.epoch <= lane.cancelled.get(window.session, -1)
        # The last stage knows first that an epoch is over; the coordinator will say so, but that takes time.
        before = lane.predicted.get(window.session)
        if stale or (before is not None and before.refutes(window)):
            self._pass_stale(lane, window)
            return
        sequence = self._sequences.sequence(lane.number, window.session)
        if self._tail is None:
            begun = time.perf_counter()
            hidden = self._forward(sequence, window)
            times = (*window.times, self._time(lane, sequence, arrived, begun))
            lane.forward(replace(window, activations=hidden, times=times))
            return
        if self._ahead is not None:
            verified = self._ahead.verify(sequence, window)
        else:
            verified = verify_now(self._tail, sequence, window)
        predicted = lane.predicted[window.session] = Predicted.of(window, verified.predictions)
        time_here = self._time(lane, sequence, arrived, verified.begun, verified.ended)
        lane.reply(
            PredictedTokens(
                session=window.session,
                window=window.window,
                epoch=window.epoch,
                start=window.predicted[0],
                predictions=verified.predictions,
                draft=verified.draft,
                times=(*window.times, time_here),
            )
        )
        if window.draft_later:
            self._draft_later(lane, sequence, window, predicted)

    def _draft_later(self, lane: Lane, sequence: int, window: VerifyWindow, predicted: Predicted) -> None:
        """Draft while the reply travels and other stages compute; not where the last draft was right so far,
        because its windows are on their way."""
        assert self._tail is not None
        position, token = predicted.position, predicted.token
        if self._tail.confirms_draft(sequence, position, token):
            return
        draft = self._tail.draft(sequence, position, token, window.draft_budget)
        if draft is not None:
            lane.reply(DraftedTokens(window.session, window.window, window.epoch, draft))

    def _pass_stale(self, lane: Lane, window: VerifyWindow) -> None:
        if self._tail is None:
            lane.forward(replace(window, stale=True, activations=None))
        else:
            lane.reply(
                PredictedTokens(
                    session=window.session,
                    window=window.window,
                    epoch=window.epoch,
                    start=window.predicted[0],
                    predictions=(),
                    stale=True,
                    times=window.times,
                )
            )

    def _prefill(self, lane: Lane, chunk: Prefill, arrived: float) -> None:
        sequence = self._sequences.sequence(lane.number, chunk.session)
        begun = time.perf_counter()
        if self._tail is None:
            hidden = self._forward(sequence, chunk)
            times = (*chunk.times, self._time(lane, sequence, arrived, begun))
            lane.forward(replace(chunk, activations=hidden, times=times))
            return
        self._tail.prefill(sequence, chunk.start, chunk.tokens, chunk.next_token, chunk.activations)
        times = (*chunk.times, self._time(lane, sequence, arrived, begun))
        end = chunk.start + len(chunk.tokens)
        lane.reply(PrefillDone(session=chunk.session, end=end, times=times))

    def _forward(self, sequence: int, message: Prefill | VerifyWindow) -> Activations | None:
        if self.stage.slice.is_first:
            return self.stage.forward(sequence, message.start, tokens=message.tokens)
        return self.stage.forward(sequence, message.start, hidden=message.activations)

    def _trim(self, sequence: int, keep: int) -> None:
        if self._tail is not None:
            self._tail.trim(sequence, keep)
        else:
            self.stage.trim(sequence, keep)

    def _release(self, lane: Lane, session: int) -> None:
        lane.cancelled.pop(session, None)
        lane.predicted.pop(session, None)
        sequence = self._sequences.release(lane.number, session)
        if sequence is None:
            return
        if self._tail is not None:
            self._tail.release(sequence)
        else:
            self.stage.release(sequence)

    def _time(
        self, lane: Lane, sequence: int, arrived: float, begun: float, ended: float | None = None
    ) -> StageTime:
        if ended is None:
            ended = time.perf_counter()
        return StageTime(
            stage=lane.index,
            queue_us=max(0, int((begun - arrived) * 1e6)),  # what was computed ahead waited for nothing
            compute_us=int((ended - begun) * 1e6),
            kv_tokens=self.stage.length(sequence),
        )

    def _error(self, job: _Job, code: str, reason: str) -> ErrorMessage:
        return ErrorMessage(
            code=code,
            reason=f"stage {job.lane.index}: {reason}",
            stage=job.lane.index,
            retryable=code == Busy.code,
            session=getattr(job.message, "session", -1),
            window=getattr(job.message, "window", -1),
        )
