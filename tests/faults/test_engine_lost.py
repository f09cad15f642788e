"""The engine process itself, and with it stage 0, is killed and stopped: the front end has the tokens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.events import EngineState, Event, Notice, PrefillProgress, RequestFinished, TokensCommitted
from engine.reducer import apply
from engine.view import ViewState
from tests.faults.conftest import Undisturbed
from tests.faults.harness import DEADLINE, DRAWN, plan
from tests.faults.processes import children, is_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "Repeat what I say. " * 30


def request(question: str = "Tell me a story.", **options: Any) -> GenerateRequest:
    values = {"max_tokens": 60, "sampling": DRAWN, **options}
    return GenerateRequest(request="r1", messages=({"role": "user", "content": question},), **values)


async def ready(client: EngineClient) -> None:
    async for event in client.events():
        if isinstance(event, EngineState) and event.state == "ready":
            return


async def answer(
    client: EngineClient, asked: GenerateRequest, when: Callable[[Event], bool], number: int
) -> tuple[list[Event], RequestFinished]:
    """Ask, and send the engine a signal at the first event that `when` is true for."""
    events: list[Event] = []
    struck = 0
    async for event in client.generate(asked):
        events.append(event)
        if not struck and when(event):
            struck = client.pid
            os.kill(struck, number)
    assert struck
    assert client.pid != struck
    finished = events[-1]
    assert isinstance(finished, RequestFinished)
    return events, finished


def some_tokens(event: Event) -> bool:
    return isinstance(event, TokensCommitted) and event.window >= 10


def some_prompt(event: Event) -> bool:
    return isinstance(event, PrefillProgress)


@pytest.mark.parametrize(
    ("question", "tokens", "when", "number"),
    [
        ("Tell me a story.", 200, some_tokens, signal.SIGKILL),
        ("Tell me a story.", 200, some_tokens, signal.SIGSTOP),
        (LONG, 20, some_prompt, signal.SIGKILL),
    ],
    ids=["decode-killed", "decode-stopped", "prefill-killed"],
)
async def test_the_same_answer_goes_on_in_another_engine(
    model: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
    question: str,
    tokens: int,
    when: Callable[[Event], bool],
    number: int,
) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        EngineClient(LocalEngine(plan(model, (3,)), tmp_path / "log")) as client,
    ):
        await ready(client)
        family = [client.pid, *children(client.pid)]
        events, finished = await answer(client, request(question, max_tokens=tokens), when, number)
        assert finished.finish_reason == "length"
        known = await undisturbed(question, max_tokens=tokens)
        assert finished.result["token_ids"] == known
        told = [
            token for event in events if isinstance(event, TokensCommitted) for token, _, _ in event.tokens
        ]
        assert told == known, "every token is told once"
        assert [n.code for n in events if isinstance(n, Notice) and n.level == "warning"] == ["engine-lost"]
        state = ViewState()
        for event in events:
            state = apply(event, state)
        assert state.request is not None
        assert state.request.text == finished.result["text"]
        assert all(map(is_gone, family)), "its stages ended with it"


async def test_an_engine_killed_while_it_loads_is_replaced(
    model: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        EngineClient(LocalEngine(plan(model, (3,)), tmp_path / "log")) as client,
    ):
        os.kill(client.pid, signal.SIGKILL)
        events = [event async for event in client.generate(request())]
        finished = events[-1]
        assert isinstance(finished, RequestFinished)
        assert finished.result["token_ids"] == await undisturbed()


async def test_an_answer_that_was_complete_is_not_computed_again(
    model: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    known = await undisturbed()
    async with (
        asyncio.timeout(DEADLINE),
        EngineClient(LocalEngine(plan(model, ()), tmp_path / "l")) as client,
    ):
        await ready(client)
        events = [event async for event in client.generate(request(resume=tuple(known)))]
        finished = events[-1]
        assert isinstance(finished, RequestFinished)
        assert finished.finish_reason == "length"
        assert finished.result["token_ids"] == known
        assert not [event for event in events if isinstance(event, TokensCommitted) and event.tokens]
