"""What an answer tells: its tokens as text, the replies that they came with, and what all that took.

Nothing is told before what it has caused has left: a reply is noted when it has been acted on, and told
later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.client.requests import GenerateRequest
from engine.coordinator.measures import AnswerMeasure
from engine.coordinator.prefill import PromptFeed
from engine.coordinator.prompt import PromptBuilder
from engine.coordinator.reporting import AnswerReport
from engine.coordinator.text import AnswerText
from engine.events import Event
from engine.protocol.messages import DraftedTokens, PredictedTokens
from engine.speculation.types import Actions, StopSignal


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply that has been acted on. `at`: when it came, in seconds of `time.perf_counter`."""

    reply: PredictedTokens
    route: str
    actions: Actions
    at: float


class AnswerTelling:
    """The told side of one answer. `token_ids` and `text` are what has been told so far, together with what
    the request brought along."""

    def __init__(
        self,
        request: GenerateRequest,
        prompts: PromptBuilder,
        prompt_tokens: int,
        emit: Callable[[Event], None],
    ) -> None:
        self.token_ids = list(request.resume)
        self.measure = AnswerMeasure(started=time.perf_counter(), prompt_tokens=prompt_tokens)
        self.report = AnswerReport(request, prompts, emit)
        self._is_end = prompts.is_end
        self._stops = bool(request.stop)
        self._text = AnswerText(prompts.piece, request.stop)
        self.resumed_stop = any(self._text.feed(token)[1] for token in request.resume)
        self._untold: list[Answered] = []
        self._texts: list[str | None] = []  # of committed tokens that are not told; None: not made yet

    @property
    def text(self) -> str:
        return self._text.text

    def check_stop(self, token: int) -> StopSignal | None:
        """Called by the decode loop once for each token that it is about to commit."""
        if self._is_end(token):
            self._texts.append("")
            return "end"
        if not self._stops:  # its text cannot end the answer, and is made when it is told
            self._texts.append(None)
            return None
        text, stopped = self._text.feed(token)
        self._texts.append(text)
        return "stop" if stopped else None

    def note(self, answered: Answered) -> bool:
        """Keep a reply until `tell`; True if nothing else was waiting."""
        self._untold.append(answered)
        return len(self._untold) == 1

    def tell(self, feed: PromptFeed, *, ended: bool) -> None:
        """Account for the replies since the last time, and report them. `ended`: no token comes behind those
        that are committed."""
        untold, self._untold = self._untold, []
        for answered in untold:
            self._tell_reply(answered, feed, ended=ended)

    def drafted(self, message: DraftedTokens, stage: int) -> None:
        """A draft of this stage came behind its reply."""
        self.measure.drafted(stage, message.draft.head_us / 1000)
        self.report.drafted(message)

    def windows(self, actions: Actions) -> None:
        """Windows have left."""
        for window in actions.windows:
            self.report.window(window)

    def end(self) -> None:
        """No more tokens: give out what text was held back."""
        if tail := self._text.flush():
            self.report.tokens(-1, [], tail)

    def _tell_reply(self, answered: Answered, feed: PromptFeed, *, ended: bool) -> None:
        reply, actions = answered.reply, answered.actions
        ends_prefill = feed.computed < feed.total
        self.measure.stage_times(reply.times, prefill=ends_prefill)
        self.measure.tokens(len(actions.committed), answered.at)
        if ends_prefill and not reply.stale:
            feed.completed()
            self.report.prefill(feed)
        if actions.committed:
            self._tell_tokens(actions, reply.window, ended=ended)
        if actions.done is not None:
            self.report.done(actions.done, reply, answered.route)
        self.windows(actions)

    def _tell_tokens(self, actions: Actions, window: int, *, ended: bool) -> None:
        count = len(actions.committed)
        texts, self._texts = self._texts[:count], self._texts[count:]
        shown = [
            (item.token, item.origin, self._text.feed(item.token)[0] if text is None else text)
            for item, text in zip(actions.committed, texts, strict=True)
            if not item.ends
        ]
        self.token_ids.extend(token for token, _, _ in shown)
        last = ended and not self._texts
        self.report.tokens(window, shown, self._text.flush() if last else "")
