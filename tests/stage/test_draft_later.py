"""A stage that answers first and drafts then, and that knows when drafts are wrong before it is told."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from random import Random

import pytest

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.model.file import ModelFile
from engine.model.slices import whole_model
from engine.protocol.messages import (
    ConfigureGeneration,
    Draft,
    DraftedTokens,
    Message,
    PredictedTokens,
    Prefill,
    PrefillDone,
    SamplingSettings,
    VerifyWindow,
)
from engine.stage.worker import Lane, StageWorker

OPTIONS = ComputeOptions(context=96, sequences=2, batch_rows=32)
PROMPT = [int(token) for token in Random(4).choices(range(64), k=20)]
AT = len(PROMPT) - 1  # of the first window

Drafted = tuple[tuple[int, ...], tuple[float, ...]]


class Session:
    """One session of a worker, spoken to by hand."""

    def __init__(self, worker: StageWorker, number: int, sampling: SamplingSettings) -> None:
        self.replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._worker = worker
        self._number = number
        self._windows = 0
        self._lane = Lane(number=number, index=0, forward=self.replies.put, reply=self.replies.put)
        worker.submit(self._lane, ConfigureGeneration(number, sampling, len(PROMPT), "mtp"))
        self.prefill(PROMPT)

    def prefill(self, prompt: list[int]) -> None:
        """All tokens but the last."""
        self._worker.submit(self._lane, Prefill(self._number, 0, tuple(prompt[:-1]), prompt[-1]))
        assert isinstance(self._next(), PrefillDone)

    def send(self, start: int, *tokens: int, epoch: int = 0, budget: int = 2) -> None:
        """A window whose draft is to come behind its reply."""
        window = VerifyWindow(
            self._number, self._windows, epoch, start, tokens, draft_budget=budget, draft_later=True
        )
        self._windows += 1
        self._worker.submit(self._lane, window)

    def reply(self) -> PredictedTokens:
        """The next message, which is the reply to a window."""
        reply = self._next()
        assert isinstance(reply, PredictedTokens), reply
        assert reply.draft is None
        return reply

    def draft(self) -> Draft:
        """The next message, which is a draft."""
        drafted = self._next()
        assert isinstance(drafted, DraftedTokens), drafted
        return drafted.draft

    def _next(self) -> Message:
        return self.replies.get(timeout=30)


@pytest.fixture
def worker(drafter: ModelFile) -> Iterator[StageWorker]:
    worker = StageWorker(Stage(whole_model(drafter), OPTIONS))
    yield worker
    worker.close()


@pytest.fixture
def session(worker: StageWorker) -> Session:
    return Session(worker, 1, SamplingSettings())


@pytest.fixture
def reference(drafter: ModelFile) -> Iterator[Tail]:
    """The same model, which drafts in its replies."""
    tail = Tail(Stage(whole_model(drafter), OPTIONS))
    tail.configure(0, ConfigureGeneration(0, SamplingSettings(), len(PROMPT), "mtp"))
    tail.prefill(0, 0, PROMPT[:-1], PROMPT[-1], None)
    yield tail
    tail.stage.close()


def test_the_draft_is_the_one_that_would_have_come_in_the_reply(session: Session, reference: Tail) -> None:
    position, tokens = AT, [PROMPT[-1]]
    for wrong in (0, 0, 3, 1, 0, 2):  # further rows, none of them right
        session.send(position, *tokens, epoch=position)
        reply, draft = session.reply(), session.draft()
        predictions, wanted = reference.verify(0, position, tokens, None, 2)
        assert wanted is not None
        assert reply.predictions == predictions
        assert (draft.position, draft.after_token) == (wanted.position, wanted.after_token)
        assert draft.tokens == wanted.tokens
        assert draft.probabilities == pytest.approx(wanted.probabilities)
        assert reply.times[0].compute_us > 0
        assert draft.head_us > 0
        position += 1
        tokens = [predictions[0]] + [(predictions[0] + 1 + more) % 64 for more in range(wrong)]


def test_nothing_is_drafted_where_the_last_draft_was_right_so_far(
    session: Session, reference: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its windows are on their way. With a head that is never wrong."""
    said, position = [PROMPT[-1]], AT
    for at in range(AT, AT + 8):
        said.append(reference.verify(0, at, said[-1:], None, 0)[0][0])

    def right(head: object, seq: int, tokens: list[int], budget: int) -> Drafted:
        begin = len(tokens) - AT
        return tuple(said[begin : begin + budget]), (1.0,) * budget

    monkeypatch.setattr("engine.compute.mtp.DraftHead.draft", right)
    for number in range(6):
        session.send(position + number, said[number])
    seen = [type(session.replies.get(timeout=30)).__name__ for _ in range(8)]
    assert seen == [
        *("PredictedTokens", "DraftedTokens"),  # of 2 and 3
        *("PredictedTokens", "PredictedTokens"),  # they were right
        *("PredictedTokens", "DraftedTokens"),  # of 5 and 6
        *("PredictedTokens", "PredictedTokens"),
    ]
    assert session.replies.empty()


def test_windows_behind_a_wrong_draft_are_not_computed(session: Session, worker: StageWorker) -> None:
    session.send(AT, PROMPT[-1], budget=0)
    (said,) = session.reply().predictions
    length = worker.stage.length(0)
    for start in (AT + 1, AT + 2):
        session.send(start, (said + 1) % 64, budget=0)
        reply = session.reply()
        assert (reply.stale, reply.predictions) == (True, ())
    assert worker.stage.length(0) == length
    session.send(AT + 1, said, epoch=1, budget=0)  # the coordinator's next epoch
    assert not session.reply().stale


def test_a_wrong_draft_within_a_window_ends_its_epoch_too(session: Session) -> None:
    session.send(AT, PROMPT[-1], budget=0)
    (said,) = session.reply().predictions
    session.send(AT + 1, said, 0, 0, epoch=1, budget=0)
    predictions = session.reply().predictions
    assert (predictions[0], predictions[1]) != (0, 0)
    session.send(AT + 4, predictions[-1], epoch=1, budget=0)
    assert session.reply().stale


def test_an_answer_that_begins_anew_is_not_judged_by_the_one_before(session: Session) -> None:
    session.send(AT, PROMPT[-1], budget=0)
    session.reply()
    other = [(token + 1) % 64 for token in PROMPT]
    session.prefill(other)
    session.send(AT, other[-1], budget=0)
    assert not session.reply().stale
