"""A last stage, in this process, that says it has an MTP head: what the head drafts is up to the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from engine.protocol.messages import Draft, DraftedTokens, VerifyWindow
from engine.speculation.goodput import GoodputPolicy
from engine.speculation.policies import PLAIN, Choice, DraftNeed, Offer
from engine.stage.process import StageSettings, load_worker
from engine.stage.service import StageService
from engine.stage.worker import Lane, Predicted
from tests.faults.tiny_llama import LAYERS

BUDGET = 2
HEAD_US = 100

Lie = Callable[[DraftedTokens], Sequence[DraftedTokens]]
"""What is sent instead of a draft behind the reply to a window."""


class EagerPolicy(GoodputPolicy):
    """Asks for a draft behind every reply, and sends each of its tokens in a window of its own."""

    drafts_behind = True

    def choose(self, offer: Offer) -> Choice:
        return Choice(1, offer.depth_limit, "eager") if offer.joining else PLAIN

    def draft_budget(self, need: DraftNeed) -> int:
        return min(BUDGET, need.limit)


class LyingStage:
    """Its predictions are the model's own; its drafts are the tokens that `answer` has at their place."""

    def __init__(self, model: Path, first: int) -> None:
        self.answer: Sequence[int] = ()
        self.prompt = 0  # tokens before `answer`
        self.lie: Lie = lambda drafted: (drafted,)
        self.worker = load_worker(
            StageSettings(model=str(model), first=first, end=LAYERS, context=2048, threads=1)
        )
        self.worker._draft_later = self._draft_later  # type: ignore[method-assign]
        self.service = StageService(self.worker)
        self.service.info = replace(self.service.info, native_mtp=True)
        self.url = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def honestly(self) -> None:
        """No lie any more."""
        self.lie = lambda drafted: (drafted,)

    def lie_once(self, lie: Lie) -> None:
        """Do so behind the next reply that a draft comes behind."""

        def once(drafted: DraftedTokens) -> Sequence[DraftedTokens]:
            self.honestly()
            return lie(drafted)

        self.lie = once

    def _draft_later(self, lane: Lane, sequence: int, window: VerifyWindow, predicted: Predicted) -> None:
        at = predicted.position + 1 - self.prompt
        tokens = tuple(self.answer[at : at + window.draft_budget])
        if tokens:
            draft = Draft(predicted.position + 1, predicted.token, tokens, (0.9,) * len(tokens), HEAD_US)
            for message in self.lie(DraftedTokens(window.session, window.window, window.epoch, draft)):
                lane.reply(message)


@asynccontextmanager
async def lying_stage(model: Path, first: int) -> AsyncIterator[LyingStage]:
    """The layers of the tiny model from `first` on. It serves inside this context."""
    stage = LyingStage(model, first)
    try:
        stage.url = await stage.service.listen("127.0.0.1", 0, token="")
        yield stage
    finally:
        await stage.service.close()
        stage.worker.close()


def changed(drafted: DraftedTokens, **changes: object) -> DraftedTokens:
    """With another draft."""
    return replace(drafted, draft=replace(drafted.draft, **changes))  # type: ignore[arg-type]


def tokens(drafted: DraftedTokens, *tokens: int) -> DraftedTokens:
    """With other tokens."""
    return changed(drafted, tokens=tokens, probabilities=(0.9,) * len(tokens))
