"""Several answers at once over one set of stages: each is what it would be alone, and all get their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.client.requests import GenerateRequest
from engine.events import RequestFinished, RequestStarted, TokensCommitted
from tests.faults.harness import DEADLINE, DRAWN, Disturbed, disturbed, plan
from tests.faults.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = ("Tell me a story.", "Name a colour.", "Count to ten.", "Where is the river?")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_at_once(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Disturbed]:
    """Two stages with room for two conversations."""
    model: Path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    base = plan(model, (3,))
    async with disturbed(replace(base, compute=replace(base.compute, sequences=2))) as running:
        yield running


async def ask(running: Disturbed, number: int, name: str, tokens: int = 40) -> dict[str, Any]:
    request = GenerateRequest(
        request=f"{name}-{number}",
        messages=({"role": "user", "content": QUESTIONS[number]},),
        max_tokens=tokens,
        sampling=DRAWN,
    )
    async with asyncio.timeout(DEADLINE):
        return (await running.engine.generate(request)).result


async def test_answers_at_the_same_time_are_what_they_are_alone(two_at_once: Disturbed) -> None:
    alone = [await ask(two_at_once, number, "alone") for number in range(4)]
    together = await asyncio.gather(*(ask(two_at_once, number, "together") for number in range(4)))
    assert [result["token_ids"] for result in together] == [result["token_ids"] for result in alone]
    assert {result["finish_reason"] for result in together} == {"length"}


async def test_two_answers_share_the_stages_and_the_others_wait_for_their_turn(
    two_at_once: Disturbed,
) -> None:
    two_at_once.events.clear()
    await asyncio.gather(*(ask(two_at_once, number, "turn") for number in range(4)))
    started = [event.request for event in two_at_once.of_kind(RequestStarted)]
    assert started == [f"turn-{number}" for number in range(4)]
    first_end = next(e for e in two_at_once.events if isinstance(e, RequestFinished))
    before = two_at_once.events[: two_at_once.events.index(first_end)]
    counts = [
        sum(len(e.tokens) for e in before if isinstance(e, TokensCommitted) and e.request == f"turn-{number}")
        for number in range(4)
    ]
    assert counts[2:] == [0, 0]  # there is room for two
    assert min(counts[:2]) > 20  # neither of them was kept waiting by the other
