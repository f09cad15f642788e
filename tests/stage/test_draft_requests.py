"""Coordinators that ask for drafts behind replies where there is nothing to draft, or where it makes no
sense: every window is answered, no draft comes that was not asked for, and the next coordinator is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.model.file import ModelFile
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    DraftedTokens,
    ErrorMessage,
    Hello,
    Hop,
    Message,
    PredictedTokens,
    Prefill,
    PrefillDone,
    Role,
    TrimSession,
    VerifyWindow,
)
from engine.stage.process import StageSettings, load_worker
from engine.stage.service import StageService
from engine.transport import Link, open_link
from tests.compute.conftest import DRAFTER
from tests.faults.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 128
PROMPT = tuple(range(3, 33))
AT = len(PROMPT) - 1  # of the first window
PATIENCE = 30.0


class Coordinator:
    """One session of a lane that begins with layer 0, spoken to by hand."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._windows = 0

    async def begin(self, strategy: str = "mtp", prompt: Sequence[int] = PROMPT) -> None:
        """Configure the session and prefill all tokens but the last."""
        self.link.post(ConfigureGeneration(1, prompt_length=len(prompt), strategy=strategy))
        if len(prompt) > 1:
            self.link.post(Prefill(1, 0, tuple(prompt[:-1]), prompt[-1]))
            assert isinstance(await self.next(), PrefillDone)

    def send(self, start: int, *tokens: int, epoch: int = 0, budget: int = 2, **more: bool) -> None:
        """A window whose draft is to come behind its reply."""
        self._windows += 1
        window = VerifyWindow(1, self._windows, epoch, start, tokens, budget, draft_later=True, **more)
        self.link.post(window)

    async def next(self) -> Message:
        async with asyncio.timeout(PATIENCE):
            return await anext(aiter(self.link))

    async def reply(self) -> PredictedTokens:
        """The next message, which is the reply to a window, and holds no draft."""
        reply = await self.next()
        assert isinstance(reply, PredictedTokens), reply
        assert reply.draft is None
        return reply

    async def drafted(self) -> DraftedTokens:
        """The next message, which is a draft behind the last window."""
        drafted = await self.next()
        assert isinstance(drafted, DraftedTokens), drafted
        assert (drafted.session, drafted.window) == (1, self._windows)
        return drafted

    async def nothing_more(self) -> None:
        """No draft is on its way: what is asked for next comes next."""
        self.link.post(TrimSession(1, 1))
        self.link.post(Prefill(1, 1, (9,), 9))
        assert isinstance(await self.next(), PrefillDone)


class Stages:
    """Two stages of a model, the first of which dials the second, and coordinators for them."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self._path = path
        self._stack = stack
        self._urls: list[str] = []

    async def start(self, cut: int, end: int) -> None:
        for span in ((0, cut), (cut, end)):
            settings = StageSettings(model=str(self._path), first=span[0], end=span[1], context=CONTEXT)
            worker = load_worker(replace(settings, threads=1))
            service = StageService(worker)
            self._urls.append(await service.listen("127.0.0.1", 0, token=""))
            self._stack.callback(worker.close)
            self._stack.push_async_callback(service.close)

    async def coordinator(self, stack: AsyncExitStack) -> Coordinator:
        model = ModelFile.open(self._path)
        hello = Hello(
            role=Role.LANE,
            chain="by hand",
            fingerprint=model.fingerprint,
            architecture=model.architecture,
            n_embd=64,
            n_layers=6,
            stage_index=0,
            window_rows=8,
            prefill_rows=32,
            context=CONTEXT,
            route=(Hop(self._urls[1]),),
        )
        link = await open_link(self._urls[0], hello)
        stack.push_async_callback(link.close)
        return Coordinator(link)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def with_head(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    """Of a tiny model with a NextN block."""
    path = tmp_path_factory.mktemp("drafter") / "drafter.gguf"
    DRAFTER.write(path)
    async with AsyncExitStack() as stack:
        stages = Stages(path, stack)
        await stages.start(3, 6)
        yield stages


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def without_head(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    """Of a tiny model without."""
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    async with AsyncExitStack() as stack:
        stages = Stages(path, stack)
        await stages.start(3, 6)
        yield stages


@pytest_asyncio.fixture(loop_scope="module")
async def coordinator(with_head: Stages) -> AsyncIterator[Coordinator]:
    """One after the other: the stages have one sequence, which the one before must have left."""
    async with AsyncExitStack() as stack:
        yield await with_head.coordinator(stack)


async def test_drafts_come_up_the_lane_behind_their_replies(coordinator: Coordinator) -> None:
    await coordinator.begin()
    coordinator.send(AT, PROMPT[-1], budget=1)
    (said,) = (await coordinator.reply()).predictions
    draft = (await coordinator.drafted()).draft
    assert (draft.position, draft.after_token, len(draft.tokens)) == (AT + 2, said, 1)


@pytest.mark.parametrize(("budget", "most"), [(1, 1), (8, 8), (255, 8)])
async def test_no_draft_is_longer_than_it_may_be(coordinator: Coordinator, budget: int, most: int) -> None:
    await coordinator.begin()
    coordinator.send(AT, PROMPT[-1], budget=budget)
    await coordinator.reply()
    assert len((await coordinator.drafted()).draft.tokens) == most


async def test_a_budget_of_nothing_is_a_draft_of_nothing(coordinator: Coordinator) -> None:
    await coordinator.begin()
    coordinator.send(AT, PROMPT[-1], budget=0)
    assert len((await coordinator.reply()).predictions) == 1
    await coordinator.nothing_more()


async def test_nothing_is_drafted_behind_a_stale_window(coordinator: Coordinator) -> None:
    await coordinator.begin()
    coordinator.link.post(CancelEpoch(1, 3))
    coordinator.send(AT, PROMPT[-1], epoch=3)
    assert (await coordinator.reply()).stale
    coordinator.send(AT, PROMPT[-1], epoch=4, stale=True)
    assert (await coordinator.reply()).stale
    await coordinator.nothing_more()


async def test_a_draft_that_does_not_fit_into_the_context_is_shorter_or_none(
    coordinator: Coordinator,
) -> None:
    await coordinator.begin()
    full = CONTEXT - 8
    for start in range(AT, full, 30):
        coordinator.link.post(Prefill(1, start, PROMPT[: min(30, full - start)], 5))
        assert isinstance(await coordinator.next(), PrefillDone)
    for start in range(full, CONTEXT):
        coordinator.send(start, 5, epoch=start, budget=4)
        await coordinator.reply()
        room = CONTEXT - start - 2  # the row after this one holds what was said
        if room > 0:
            assert len((await coordinator.drafted()).draft.tokens) == min(4, room)
    await coordinator.nothing_more()


@pytest.mark.parametrize("strategy", ["disabled", "auto", "mtp", "ngram-suffix"])
async def test_drafts_may_be_asked_for_whatever_the_strategy_and_wherever_the_window_begins(
    coordinator: Coordinator, strategy: str
) -> None:
    """Also where the head has not seen the rows before, and back where they were replaced."""
    await coordinator.begin(strategy)
    for number, start in enumerate((AT, AT + 1, AT - 9, AT - 8, 0, 1, 2)):
        coordinator.send(start, 40 + number, epoch=number, budget=3 if number != 1 else 0)
        (said,) = (await coordinator.reply()).predictions
        if number != 1:
            draft = (await coordinator.drafted()).draft
            assert (draft.position, draft.after_token) == (start + 2, said)
    await coordinator.nothing_more()


async def test_the_end_of_a_prompt_is_drafted_from_as_well(coordinator: Coordinator) -> None:
    await coordinator.begin(prompt=PROMPT[:1])
    coordinator.send(0, *PROMPT, last_only=True)
    (said,) = (await coordinator.reply()).predictions
    draft = (await coordinator.drafted()).draft
    assert (draft.position, draft.after_token) == (AT + 2, said)


async def test_a_window_that_cannot_be_computed_is_one_error_and_no_draft(coordinator: Coordinator) -> None:
    await coordinator.begin()
    coordinator.send(AT, 10_000)
    error = await coordinator.next()
    assert isinstance(error, ErrorMessage)
    assert error.code == "protocol"
    assert "10000" in error.reason
    coordinator.send(AT, PROMPT[-1], epoch=1)
    assert len((await coordinator.reply()).predictions) == 1
    await coordinator.drafted()


async def test_a_stage_without_a_head_answers_and_drafts_nothing(without_head: Stages) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await without_head.coordinator(stack)
        await coordinator.begin()
        for number in range(3):
            coordinator.send(AT + number, PROMPT[-1], epoch=number, budget=4)
            assert len((await coordinator.reply()).predictions) == 1
        await coordinator.nothing_more()
