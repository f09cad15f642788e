"""Tokens computed before they are asked for: never other tokens, and only where they will be asked for."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.model.demo import demo_available, demo_model
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice, whole_model
from engine.protocol.messages import (
    ConfigureGeneration,
    ErrorMessage,
    Message,
    PredictedTokens,
    Prefill,
    SamplingSettings,
    VerifyWindow,
)
from engine.stage.ahead import PLAIN_WINDOWS, RunAhead, foresees
from engine.stage.worker import Lane, StageWorker

OPTIONS = ComputeOptions(context=96, sequences=2, batch_rows=32)
PROMPT = [int(token) for token in Random(4).choices(range(64), k=20)]
GREEDY, DRAWN = SamplingSettings(), SamplingSettings(temperature=1.0, repeat_penalty=1.2, seed=7)
LETTERS = SamplingSettings(grammar="root ::= [a-z ]*")


@pytest.fixture
def new_tail(drafter: ModelFile) -> Iterator[Callable[[], Tail]]:
    """Makes tails of the whole model."""
    stages: list[Stage] = []

    def make() -> Tail:
        stages.append(Stage(whole_model(drafter), OPTIONS))
        return Tail(stages[-1])

    yield make
    for stage in stages:
        stage.close()


def prompted(tail: Tail, strategy: str, sampling: SamplingSettings = GREEDY) -> None:
    tail.configure(0, ConfigureGeneration(0, sampling, len(PROMPT), strategy))
    tail.prefill(0, 0, PROMPT[:-1], PROMPT[-1], None)


def window(start: int, *tokens: int, budget: int = 0) -> VerifyWindow:
    return VerifyWindow(session=0, window=0, epoch=0, start=start, tokens=tokens, draft_budget=budget)


def plainly(ahead: RunAhead, position: int, token: int, count: int) -> list[int]:
    """Tokens of so many plain windows."""
    said = []
    for at in range(position, position + count):
        (token,) = ahead.verify(0, window(at, token)).predictions
        ahead.go_on()
        said.append(token)
    return said


def test_plain_decoding_finds_its_tokens_computed(new_tail: Callable[[], Tail]) -> None:
    tail, reference = new_tail(), new_tail()
    ahead = RunAhead(tail)
    prompted(reference, "disabled")
    prompted(tail, "disabled")
    ahead.configure(0, "disabled")
    said, token = [], PROMPT[-1]
    for at in range(len(PROMPT) - 1, len(PROMPT) + 30):
        (token,), _ = reference.verify(0, at, [token], None, 0)
        said.append(token)
    position = len(PROMPT) - 1
    assert plainly(ahead, position, PROMPT[-1], 31) == said
    assert tail.stage.length(0) == position + 32  # one more than was asked for
    before = tail.stage.all_logits().copy()
    asked = ahead.verify(0, window(position + 31, said[-1]))
    assert (tail.stage.all_logits() == before).all()  # nothing was computed for it
    assert asked.begun < asked.ended


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_for_the_answer_is_the_tails(
    new_tail: Callable[[], Tail], sampling: SamplingSettings, seed: int
) -> None:
    compare(new_tail(), new_tail(), sampling, "auto" if seed % 2 else "disabled", Random(seed))


@pytest.mark.skipif(not demo_available(), reason="the default model is not installed")
def test_a_grammar_goes_on_where_it_was() -> None:
    demo = ModelFile.open(demo_model())
    tail, reference = (Tail(Stage(whole_model(demo), OPTIONS)) for _ in range(2))
    try:
        compare(tail, reference, LETTERS, "disabled", Random(1))
    finally:
        tail.stage.close()
        reference.stage.close()


def compare(tail: Tail, reference: Tail, sampling: SamplingSettings, strategy: str, random: Random) -> None:
    """Plain windows, right and wrong drafts, steps back, in any order."""
    ahead = RunAhead(tail)
    for one in (tail, reference):
        prompted(one, strategy, sampling)
    ahead.configure(0, strategy)
    position, token, in_advance = len(PROMPT) - 1, PROMPT[-1], 0
    for _ in range(60):
        tokens = [token]
        match random.choices(["plain", "drafts", "back"], [12, 2, 1])[0]:
            case "drafts":
                tokens += random.choices(range(64), k=random.randint(1, 3))
            case "back" if position > len(PROMPT) + 4:
                position -= random.randint(1, 4)
                tokens = [random.randrange(64)]
        if position + len(tokens) > OPTIONS.context - 4:
            position, tokens = len(PROMPT) - 1, [PROMPT[-1]]
        budget = random.choice([0, 0, 0, 2]) if len(tokens) > 1 else 0
        asked = window(position, *tokens, budget=budget)
        length = tail.stage.length(0)
        got = ahead.verify(0, asked)
        in_advance += len(tokens) == 1 and length == position + 1
        predictions, draft = reference.verify(0, position, tokens, None, budget)
        assert got.predictions == predictions
        assert (got.draft and got.draft.tokens) == (draft and draft.tokens)
        position, token = position + len(tokens), predictions[-1]
        if random.random() < 0.9:
            ahead.go_on()
    if strategy == "disabled":
        assert in_advance > 0


def test_a_strategy_that_may_draft_is_foreseen_once_it_does_not(new_tail: Callable[[], Tail]) -> None:
    tail = new_tail()
    ahead = RunAhead(tail)
    prompted(tail, "auto")
    ahead.configure(0, "auto")
    position = len(PROMPT) - 1

    def plain_windows_until_ahead(position: int, token: int) -> tuple[int, int, int]:
        count = 0
        while tail.stage.length(0) == position:
            (token,) = plainly(ahead, position, token, 1)
            position, count = position + 1, count + 1
        return count, position, token

    count, position, token = plain_windows_until_ahead(position, PROMPT[-1])
    assert count == PLAIN_WINDOWS + 1  # the first one follows the prompt
    ahead.verify(0, window(position, token, 1, 2))  # drafts: what was computed ahead was in vain
    ahead.go_on()
    assert tail.stage.length(0) == position + 3
    count, _, _ = plain_windows_until_ahead(position + 3, 5)
    assert count == 2 * PLAIN_WINDOWS + 1


def test_it_ends_where_the_answer_or_the_context_ends(
    new_tail: Callable[[], Tail], monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = new_tail()
    ahead = RunAhead(tail)
    prompted(tail, "disabled")
    ahead.configure(0, "disabled")
    position = len(PROMPT) - 1
    (token,) = ahead.verify(0, window(position, PROMPT[-1])).predictions
    with monkeypatch.context() as patched:
        patched.setattr(tail.stage.model, "is_end", lambda found: found == token)
        ahead.go_on()
    assert tail.stage.length(0) == len(PROMPT)
    plainly(ahead, position, PROMPT[-1], OPTIONS.context - position)
    assert tail.stage.length(0) == OPTIONS.context


def test_only_a_whole_model_that_can_be_rolled_back_knows_its_next_input(
    drafter: ModelFile, tmp_path: Path
) -> None:
    whole = Stage(whole_model(drafter), OPTIONS)
    last = Stage(ensure_slice(drafter, 3, drafter.n_layers, cache_dir=tmp_path), OPTIONS)
    try:
        assert foresees(whole)
        assert not foresees(last)
    finally:
        whole.close()
        last.close()


def test_another_prompt_with_the_same_last_token_is_computed(drafter: ModelFile) -> None:
    """What was computed ahead belongs to the tokens before it, not to a position and a token."""
    replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
    worker = StageWorker(Stage(whole_model(drafter), OPTIONS))
    lane = Lane(number=1, index=0, forward=replies.put, reply=replies.put)

    def ask(message: Message) -> Message:
        worker.submit(lane, message)
        reply = replies.get(timeout=30)
        assert not isinstance(reply, ErrorMessage), reply
        return reply

    def answer(prompt: list[int], session: int, count: int = 6) -> list[int]:
        ask(Prefill(session=session, start=0, tokens=tuple(prompt[:-1]), next_token=prompt[-1]))
        said, token = [], prompt[-1]
        for at in range(len(prompt) - 1, len(prompt) - 1 + count):
            reply = ask(VerifyWindow(session=session, window=at, epoch=0, start=at, tokens=(token,)))
            assert isinstance(reply, PredictedTokens)
            assert reply.times[0].kv_tokens == at + 1
            (token,) = reply.predictions
            said.append(token)
        return said

    try:
        for session in (1, 2):
            worker.submit(lane, ConfigureGeneration(session=session))
        prompt = list(PROMPT)
        said = answer(prompt, session=1)
        longer = [*prompt, *said]  # its last token and position are those that were computed ahead
        other = [(token + 1) % 64 for token in longer[:-1]] + longer[-1:]
        expected = answer(other, session=2)
        assert answer(other, session=1) == expected
    finally:
        worker.close()
