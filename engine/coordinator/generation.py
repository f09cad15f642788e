"""One answer, from prompt tokens to the result: prefill, the decode loop, events.

The decode loop itself is pure (`engine.speculation`); this is the thin shell that carries its windows to the
stages and their replies back. Replies are handled where they arrive, in a plain callback: a window leaves
before anything is reported about the one before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.config.plan import SpeculationPlan
from engine.coordinator.chain import Chain
from engine.coordinator.generation_setting import GenerationSetting
from engine.coordinator.prefill import PromptFeed
from engine.coordinator.telling import Answered, AnswerTelling
from engine.errors import Busy, ContextFull, ProtocolError, SkippyError, StageLost
from engine.events import Event, RequestFinished
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    DraftedTokens,
    ErrorMessage,
    Message,
    PredictedTokens,
    Prefill,
    PrefillDone,
    VerifyWindow,
)
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import Actions, LoopContext, WindowPlan
from engine.transport.timeouts import TIMEOUTS

log = logging.getLogger("skippy.engine")

REPORT_PAUSE = 0.001
"""Seconds from sending a window until the reply before it is reported."""

RECOVERIES = 5  # how often an answer is taken up again after a stage was lost, without a new token between


class Generation:
    """Drives one answer over one slot."""

    def __init__(self, setting: GenerationSetting, emit: Callable[[Event], None]) -> None:
        self._set = setting
        self.slot = setting.slot
        self.finished: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._telling = AnswerTelling(setting.request, setting.prompts, len(setting.prompt), emit)
        self._chain = setting.chain
        self._prompt = setting.prompt + list(setting.request.resume)
        self._feed = self._make_feed(self._prompt, reused=0)
        self._decoding = False
        self._started = False  # the decode loop has planned its first window
        self._cancelled = False
        self._failure: SkippyError | None = None  # what ended an answer that had begun
        self._loop = DecodeLoop(setting.speculation, self._loop_context())

    def _loop_context(self) -> LoopContext:
        setting, stages, drafting = self._set, self._set.chain.stages, self._set.drafting
        return LoopContext(
            prompt=self._prompt,
            max_tokens=setting.request.max_tokens - len(setting.request.resume),
            context_limit=setting.context,
            window_rows=setting.window_rows,
            native_mtp=stages[-1].native_mtp,
            drafts_behind=len(stages) > 1,
            can_rollback=all(info.can_rollback for info in stages),
            stop=self._telling.check_stop,
            costs=drafting.costs,
            draft_runner=drafting.runner,
            dynamic_ngrams=drafting.dynamic,
            static_ngrams=drafting.static,
            first_window=self.slot.next_window,
            first_epoch=self.slot.next_epoch,
            rows_not_drafted=self._rows_not_drafted(),
        )

    def _rows_not_drafted(self) -> int:
        """Rows that the NextN head will have to catch up with before its first draft. Strategies that are
        sure to ask for drafts have it fed along with the prompt, but for the last batch."""
        before, reused = self.slot.rows_not_drafted, self.slot.reusable(self._prompt)
        if not self._set.speculation.strategy.startswith("mtp"):
            return before + len(self._prompt) - reused
        first, end = self._make_feed(self._prompt, reused=reused).last_batch
        return end - first + (before if first == reused else 0)

    # -- what the engine calls ---------------------------------------------------------------------

    async def run(self) -> RequestFinished:
        """Answer; returns the last event. Raises SkippyError if the answer failed before its first token."""
        setting, slot = self._set, self.slot
        if len(setting.prompt) >= setting.context:
            raise ContextFull(
                f"the prompt has {len(setting.prompt)} tokens, the context {setting.context}",
                hint="shorten it or give --ctx a larger number",
            )
        reused = slot.reusable(self._prompt)
        self._telling.measure.reused = reused
        self._feed = self._make_feed(self._prompt, reused=reused)
        slot.cached = self._prompt[:reused]  # until the end nothing else is certain
        self._telling.report.started(len(setting.prompt), reused, self._loop.strategy)
        try:
            reason = "stop" if self._telling.resumed_stop else await self._drive()
        except SkippyError as error:
            self._chain.give_up()  # replies to this answer may still come
            if not self._telling.token_ids:
                slot.cached = []
                raise
            reason, self._failure = "error", error
        return self._finish(reason)

    async def _drive(self) -> str:
        """Run to the end; a lost stage is replaced and the same answer goes on."""
        begin, losses, known = self._begin, 0, 0
        admission = time.monotonic() + TIMEOUTS.admission
        while True:
            pause = 0.0
            try:
                begin()
                return await self.finished
            except StageLost:
                told = len(self._telling.token_ids)
                losses, known = losses + 1 if told == known else 1, told
                if losses > RECOVERIES:
                    raise
                admission = time.monotonic() + TIMEOUTS.admission
            except Busy:
                # Perhaps it is our own lane of before, of which the stage does not know yet that it is gone.
                if time.monotonic() > admission:
                    raise
                self._chain.give_up()
                pause = TIMEOUTS.redial_pause
            if self._loop.stop_reason is not None:
                return self._loop.stop_reason  # the answer was complete, only stale windows were lost
            if self._cancelled or not await self._recovered(pause):
                return "cancelled"
            begin = self._begin_again

    async def _recovered(self, pause: float) -> bool:
        """Get a new chain, after a pause of some seconds; False if the answer was cancelled first."""
        self.finished = asyncio.get_running_loop().create_future()
        self._decoding = False
        await asyncio.wait({self.finished}, timeout=pause)
        recovering = asyncio.ensure_future(self._set.recover(bool(self._telling.token_ids)))
        either: set[asyncio.Future[Any]] = {recovering, self.finished}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._cancelled:
            recovering.add_done_callback(_heard)  # it goes on, for the next answer
            return False
        self._chain = await recovering
        return True

    def _begin(self) -> None:
        self._send(self._configuration())
        self._pump_prefill()

    def _begin_again(self) -> None:
        """New stages hold nothing: prefill the prompt and what was committed since, then go on."""
        self._feed = self._make_feed(self._loop.history, reused=0)
        self._begin()

    def on_message(self, message: Message, route: str) -> None:
        """A reply of the last stage, or an error of any stage. Called on the loop."""
        if self.finished.done():
            return
        try:
            match message:
                case DraftedTokens(window=window) | ErrorMessage(window=window) if (
                    0 <= window < self.slot.next_window
                ):
                    pass  # behind the last reply of the answer before: its draft, or why there is none
                case PredictedTokens():
                    self._on_reply(message, route)
                case DraftedTokens():
                    self._on_drafted(message)
                case PrefillDone():
                    self._on_prefilled(message)
                case ErrorMessage(code=Busy.code):
                    self._fail(Busy(message.reason))
                case ErrorMessage():
                    self._fail(SkippyError(message.reason, code=message.code))
                case _:
                    raise ProtocolError(f"a stage answered with {type(message).__name__}")
        except SkippyError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours must end the answer, not leave it waiting
            log.exception("request %s: %s", self._set.request.request, type(message).__name__)
            self._fail(SkippyError(f"{type(error).__name__}: {error}", code="internal"))

    def on_lost(self, error: StageLost) -> None:
        self._fail(error)

    def cancel(self) -> None:
        """End the answer where it is. What is still under way is drained before the slot is free again, or
        the lane is given up if that takes long."""
        if self._cancelled or self.finished.done():
            return
        self._cancelled = True
        asyncio.get_running_loop().call_later(TIMEOUTS.drain, self._end_undrained)
        if self._decoding:
            self._perform(self._loop.cancel(time.perf_counter()))
        elif self._feed.in_flight == 0:
            self.finished.set_result("cancelled")

    def on_drafts_ready(self) -> None:
        """The draft model has got on. Called on the loop."""
        if self._decoding and not self.finished.done():
            self._carry_out(self._loop.drafts_ready(time.perf_counter()))

    def _end_undrained(self) -> None:
        if not self.finished.done():
            self._chain.give_up()
            self.finished.set_result("cancelled")

    def update(self, speculation: SpeculationPlan) -> None:
        """Other settings, from the next window on."""
        self._loop.update_plan(speculation)

    # -- prefill -----------------------------------------------------------------------------------

    def _configuration(self) -> ConfigureGeneration:
        return ConfigureGeneration(
            session=self.slot.session,
            sampling=self._set.request.sampling,
            prompt_length=len(self._set.prompt),
            strategy=self._set.speculation.strategy,
        )

    def _make_feed(self, tokens: Sequence[int], *, reused: int) -> PromptFeed:
        return PromptFeed(
            tokens,
            len(self._set.prompt),
            reused=reused,
            rows=self._set.prefill_rows,
            credit=len(self._chain.stages) + 1,
        )

    def _pump_prefill(self) -> None:
        """Send chunks as far as there is credit; after the last one, without a pause, start decoding."""
        feed = self._feed
        while (chunk := feed.next_chunk()) is not None:
            start, end = chunk
            self._send(
                Prefill(
                    session=self.slot.session,
                    start=start,
                    tokens=tuple(feed.tokens[start:end]),
                    next_token=feed.tokens[end],
                    final=feed.exhausted,
                )
            )
        if feed.exhausted and not self._decoding:
            self._decoding = True
            begin = self._loop.restart if self._started else self._loop.start
            self._started = True
            self._carry_out(begin(time.perf_counter()))

    def _on_prefilled(self, message: PrefillDone) -> None:
        self._feed.acknowledged(message.end)
        self._telling.measure.stage_times(message.times, prefill=True)
        if not self._decoding:
            if not self._cancelled:
                self._pump_prefill()
            elif self._feed.in_flight == 0:
                self.finished.set_result("cancelled")
        self._telling.report.prefill(self._feed)

    # -- decoding ----------------------------------------------------------------------------------

    def _on_reply(self, reply: PredictedTokens, route: str) -> None:
        now = time.perf_counter()
        actions = self._loop.on_reply(reply, now, direct=route != "lane" or len(self._chain.stages) == 2)
        self._perform(actions)
        first = self._telling.note(Answered(reply, route, actions, now))
        if self.finished.done():
            self._tell()
        elif first:
            # The compute thread wants the interpreter now, to begin the window that has just been sent.
            asyncio.get_running_loop().call_later(REPORT_PAUSE, self._tell)

    def _on_drafted(self, message: DraftedTokens) -> None:
        actions = self._loop.on_draft(message.draft, time.perf_counter())
        self._perform(actions)
        self._tell()
        self._telling.drafted(message, stage=len(self._chain.stages) - 1)
        self._telling.windows(actions)

    def _tell(self) -> None:
        """Tell of the replies since the last time."""
        self._telling.tell(self._feed, ended=self._loop.stop_reason is not None)

    def _carry_out(self, actions: Actions) -> None:
        """Do what the loop says without a reply."""
        self._perform(actions)
        self._tell()
        self._telling.windows(actions)

    def _perform(self, actions: Actions) -> None:
        """Do what the loop says. Nothing is reported before the stages have their next window."""
        if actions.cancel_epoch is not None:
            self._send(CancelEpoch(session=self.slot.session, epoch=actions.cancel_epoch))
        for window in actions.windows:
            self._send_window(window)
        if actions.finished is not None and not self.finished.done():
            self.finished.set_result(actions.finished)

    def _send_window(self, window: WindowPlan) -> None:
        start, tokens = window.start, window.tokens
        first, end = self._feed.last_batch
        ends_prompt = end == start + 1 and first < start
        if ends_prompt:  # the prompt tokens before it are computed in the same batch
            start, tokens = first, tuple(self._feed.tokens[first:end])
        self._send(
            VerifyWindow(
                session=self.slot.session,
                window=window.window,
                epoch=window.epoch,
                start=start,
                tokens=tokens,
                draft_budget=window.draft_budget,
                last_only=ends_prompt,
                draft_later=window.draft_later,
            )
        )

    def _send(self, message: Message) -> None:
        self._chain.send(message)

    def _fail(self, error: SkippyError) -> None:
        self._tell()
        if not self.finished.done():
            self.finished.set_exception(error)

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self, reason: str) -> RequestFinished:
        """Remember what the caches hold, and sum the answer up."""
        self._tell()
        slot, loop = self.slot, self._loop
        slot.next_window, slot.next_epoch = loop.next_window, loop.next_epoch
        slot.rows_not_drafted = loop.rows_not_drafted
        for violation in loop.statistics.violations():
            log.error("counters of request %s: %s", self._set.request.request, violation)
        self._set.drafting.learn(loop.history, len(self._set.prompt))
        decoded = self._feed.computed == self._feed.total
        slot.cached = loop.history[: loop.kv_length] if decoded else self._feed.tokens[: self._feed.done]
        self._telling.end()
        result = self._result(reason)
        if self._chain.lost is not None:
            slot.cached = []
        if self._failure is not None:
            error = self._failure
            result["error"] = {"code": error.code, "message": error.message, "hint": error.hint}
        return RequestFinished(
            at=time.monotonic(),
            request=self._set.request.request,
            finish_reason=reason,
            result=result,
        )

    def _result(self, reason: str) -> dict[str, Any]:
        setting, chain, told = self._set, self._chain, self._telling
        return {
            "text": told.text,
            "token_ids": told.token_ids,
            "finish_reason": reason,
            "model": setting.model,
            "strategy": self._loop.strategy.strategy,
            "exact": setting.exact,
            "timings": told.measure.timings(len(told.token_ids), resumed=len(setting.request.resume)),
            "speculative": self._loop.statistics.to_json(),
            "stages": told.measure.stage_results(chain.stages, chain.rtt_ms, setting.restarts()),
        }


def _heard(recovering: asyncio.Future[Chain]) -> None:
    """A recovery that nobody waits for any more has ended; its error has been shown where it came about."""
    if not recovering.cancelled():
        recovering.exception()
