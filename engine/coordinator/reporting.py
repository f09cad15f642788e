"""What the front ends are told about one answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.client.requests import GenerateRequest
from engine.coordinator.prefill import PromptFeed
from engine.coordinator.prompt import PromptBuilder
from engine.events import (
    DraftReceived,
    Event,
    Notice,
    PrefillProgress,
    RequestStarted,
    TokensCommitted,
    WindowDone,
    WindowSent,
)
from engine.protocol.messages import DraftedTokens, PredictedTokens
from engine.speculation.strategies import Resolved
from engine.speculation.types import WindowOutcome, WindowPlan


class AnswerReport:
    """Makes the events of one request."""

    def __init__(
        self, request: GenerateRequest, prompts: PromptBuilder, emit: Callable[[Event], None]
    ) -> None:
        self._request = request
        self._show = prompts.show
        self._emit = emit

    def started(self, prompt_tokens: int, reused: int, strategy: Resolved) -> None:
        """The request has its place; a strategy other than the one asked for is explained."""
        request = self._request
        self._emit(
            RequestStarted(
                at=time.monotonic(),
                request=request.request,
                prompt_tokens=prompt_tokens,
                reused=reused,
                strategy=strategy.strategy,
                seed=request.sampling.seed,
                temperature=request.sampling.temperature,
                max_tokens=request.max_tokens,
                resumed=len(request.resume),
            )
        )
        if strategy.note:
            self._emit(Notice(level="info", code="strategy", message=strategy.note))

    def prefill(self, feed: PromptFeed) -> None:
        """The last stage has taken more of the prompt."""
        self._emit(
            PrefillProgress(
                at=time.monotonic(), request=self._request.request, done=feed.computed, total=feed.total
            )
        )

    def tokens(self, window: int, tokens: Sequence[tuple[int, str, str]], tail: str) -> None:
        """Tokens were committed, each (id, origin, text); `tail` is text held back until now."""
        self._emit(
            TokensCommitted(
                at=time.monotonic(),
                request=self._request.request,
                window=window,
                tokens=tuple(tokens),
                tail=tail,
            )
        )

    def window(self, window: WindowPlan) -> None:
        """A window has left."""
        self._emit(
            WindowSent(
                at=time.monotonic(),
                request=self._request.request,
                window=window.window,
                epoch=window.epoch,
                start=window.start,
                rows=len(window.tokens),
                width=window.width,
                sources=tuple(window.sources),
                in_flight=window.in_flight,
                draft_budget=window.draft_budget,
                draft_later=window.draft_later,
                reason=window.reason,
            )
        )

    def done(self, done: WindowOutcome, reply: PredictedTokens, route: str) -> None:
        """A window was answered."""
        rejected = done.rejected
        shown = (
            (rejected.position, self._show(rejected.drafted), self._show(rejected.actual)) if rejected else ()
        )
        self._emit(
            WindowDone(
                at=time.monotonic(),
                request=self._request.request,
                window=done.window,
                epoch=done.epoch,
                stale=done.stale,
                accepted=done.accepted,
                width=done.width,
                elapsed_ms=done.elapsed_ms,
                stages=tuple((t.stage, t.queue_us, t.compute_us, t.kv_tokens) for t in reply.times),
                route=route,
                rejected=shown,
                drafted=len(reply.draft.tokens) if reply.draft else 0,
                draft_us=reply.draft.head_us if reply.draft else 0,
            )
        )

    def drafted(self, message: DraftedTokens) -> None:
        """A draft came behind the reply to its window."""
        self._emit(
            DraftReceived(
                at=time.monotonic(),
                request=self._request.request,
                window=message.window,
                epoch=message.epoch,
                drafted=len(message.draft.tokens),
                draft_us=message.draft.head_us,
            )
        )
