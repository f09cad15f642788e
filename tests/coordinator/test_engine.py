"""The engine with the default model: the same tokens as a plain llama.cpp loop, however it is cut."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import cache
from pathlib import Path

import pytest

from engine.compute.whole_loop import plain_loop
from engine.coordinator.prompt import PromptBuilder
from engine.events import (
    PrefillProgress,
    RequestFinished,
    RequestStarted,
    StageState,
    TokensCommitted,
)
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.protocol.messages import Draft, DraftedTokens, ErrorMessage, Message
from tests.coordinator.conftest import Running, StartEngine, chat_request, plain_plan

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

QUESTION = "Write a Python function that checks if a number is prime."
TOKENS = 40


@cache
def prompts() -> PromptBuilder:
    return PromptBuilder(ModelFile.open(demo_model()))


@cache
def reference(question: str, count: int) -> tuple[int, ...]:
    """Token ids of the plain llama.cpp loop on the same file with the same prompt."""
    builder = prompts()
    prompt = builder.tokens(chat_request("reference", question))
    return tuple(plain_loop(demo_model(), prompt, count, threads=1, exact=False, is_end=builder.is_end))


@pytest.mark.parametrize("split", [(), (15,), (1,), (29,), (10, 20), (8, 15, 22)], ids=str)
async def test_every_number_of_stages_gives_the_tokens_of_the_whole_model(
    start_engine: StartEngine, split: tuple[int, ...]
) -> None:
    running = await start_engine(plain_plan(split=split))
    result = await running.ask(QUESTION, max_tokens=TOKENS)
    assert tuple(result["token_ids"]) == reference(QUESTION, TOKENS)
    assert result["finish_reason"] == "length"
    assert result["exact"] is True
    assert [stage["kv_tokens"] for stage in result["stages"]] == [
        result["timings"]["prompt_n"] + TOKENS - 1
    ] * (len(split) + 1)


async def test_replies_of_three_stages_come_straight_back(start_engine: StartEngine) -> None:
    running = await start_engine(plain_plan(split=(10, 20)))
    result = await running.ask(QUESTION, max_tokens=5)
    assert result["speculative"]["direct_replies"] == 5
    assert result["speculative"]["fallback_replies"] == 0


async def test_the_events_spell_the_answer(running: Running) -> None:
    result = await running.ask(QUESTION, max_tokens=TOKENS)
    texts = [text for event in running.of_kind(TokensCommitted) for _, _, text in event.tokens]
    tails = [event.tail for event in running.of_kind(TokensCommitted)]
    assert "".join(texts) + "".join(tails) == result["text"]
    assert running.of_kind(RequestFinished)[-1].result == result


async def test_a_turn_prefills_only_what_is_new(running: Running) -> None:
    chat = [{"role": "user", "content": "Name a colour."}]
    first = await running.chat(chat, session="chat", max_tokens=100)
    chat += [
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "Another one."},
    ]
    again = await running.chat(chat, session="chat", max_tokens=30)
    timings = again["timings"]
    assert first["finish_reason"] == "stop"
    kept = first["timings"]["prompt_n"] + first["timings"]["predicted_n"]
    assert timings["prompt_reused_n"] == kept
    fresh = await running.chat(chat, session="other", max_tokens=30)
    assert fresh["token_ids"] == again["token_ids"]


async def test_a_long_prompt_flows_down_in_chunks(running: Running) -> None:
    question = "Count: " + " ".join(str(number) for number in range(180))
    result = await running.ask(question, max_tokens=8)
    assert result["timings"]["prompt_n"] > 512
    assert len(running.of_kind(PrefillProgress)) >= 5
    assert tuple(result["token_ids"]) == reference(question, 8)


async def test_a_prompt_longer_than_the_context_is_refused_by_number(running: Running) -> None:
    result = await running.ask("word " * 1100, max_tokens=8)
    assert result["error"]["code"] == "context"
    assert "1024" in result["error"]["message"]
    assert (await running.ask(QUESTION, max_tokens=3))["finish_reason"] == "length"


async def test_an_answer_ends_where_the_context_does(running: Running) -> None:
    result = await running.ask("Say it again: " + "tick tock " * 325, max_tokens=200)
    assert result["finish_reason"] == "context"
    assert result["timings"]["prompt_n"] + result["timings"]["predicted_n"] == 1024


async def test_a_stop_string_is_not_part_of_the_answer(running: Running) -> None:
    whole = await running.ask(QUESTION, max_tokens=TOKENS)
    stop = whole["text"][30:36]
    result = await running.ask(QUESTION, max_tokens=TOKENS, stop=(stop,))
    assert result["finish_reason"] == "stop"
    assert result["text"] == whole["text"][: whole["text"].index(stop)]


async def test_cancelling_keeps_what_there_is(running: Running) -> None:
    answer = asyncio.create_task(running.ask(QUESTION, max_tokens=500))
    await running.next_of_kind(TokensCommitted)
    running.engine.cancel(running.request)
    result = await answer
    assert result["finish_reason"] == "cancelled"
    assert 0 < len(result["token_ids"]) < 10
    assert tuple(result["token_ids"]) == reference(QUESTION, TOKENS)[: len(result["token_ids"])]
    # The caches are in order: the next answer is the model's own.
    assert tuple((await running.ask(QUESTION, max_tokens=TOKENS))["token_ids"]) == reference(QUESTION, TOKENS)


@pytest.mark.parametrize("failed", [False, True])
async def test_what_comes_behind_the_last_reply_of_an_answer_is_not_the_next_ones(
    running: Running, failed: bool
) -> None:
    """A draft that was asked for with the last window, or the error that it ended with."""
    await running.ask(QUESTION, session="late", max_tokens=5)
    answering = asyncio.ensure_future(running.ask(QUESTION, session="late", max_tokens=TOKENS))
    await running.next_of_kind(RequestStarted)
    (generation,) = running.engine._running.values()
    session, window = generation.slot.session, generation.slot.next_window - 1
    late: Message = DraftedTokens(session, window, 0, Draft(9, 1, (2,), (0.5,)))
    if failed:
        late = ErrorMessage("backend", "no draft", session=session, window=window)
    generation.on_message(late, "direct")
    result = await answering
    assert tuple(result["token_ids"]) == reference(QUESTION, TOKENS)
    assert result["finish_reason"] == "length"


async def test_a_killed_stage_is_started_again_for_the_next_answer(start_engine: StartEngine) -> None:
    running = await start_engine(plain_plan())
    await running.ask(QUESTION, max_tokens=3)
    (pid,) = {event.pid for event in running.of_kind(StageState) if event.index == 1 and event.pid}
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while (await running.next_of_kind(StageState)).state != "unreachable":
            pass
        result = await running.ask(QUESTION, max_tokens=TOKENS)
    assert tuple(result["token_ids"]) == reference(QUESTION, TOKENS)
    assert result["stages"][1]["restarts"] == 1


@pytest.mark.parametrize("victim", [1, 2])
async def test_an_answer_goes_on_after_a_stage_was_killed(start_engine: StartEngine, victim: int) -> None:
    running = await start_engine(plain_plan(split=(10, 20)))
    pids = {event.index: event.pid for event in running.of_kind(StageState)}
    async with asyncio.timeout(60):
        answer = asyncio.create_task(running.ask(QUESTION, max_tokens=TOKENS))
        while len(running.of_kind(TokensCommitted)) < 5:
            await running.next_of_kind(TokensCommitted)
        os.kill(pids[victim], signal.SIGKILL)
        result = await answer
    assert tuple(result["token_ids"]) == reference(QUESTION, TOKENS)
    assert result["finish_reason"] == "length"
    assert result["stages"][victim]["restarts"] == 1
    assert any(event["kind"] == "stage" for event in result["events"])
    texts = [text for event in running.of_kind(TokensCommitted) for _, _, text in event.tokens]
    assert "".join(texts) == result["text"]


async def test_a_stage_ends_when_its_engine_is_gone(tmp_path: Path) -> None:
    from engine.stage.child import LocalStage
    from engine.stage.process import StageSettings

    stage = LocalStage(1, StageSettings(model="demo", first=15, end=30, context=256), tmp_path)
    await stage.start()
    assert stage._process is not None
    process = stage._process
    assert process.stdin is not None
    process.stdin.close()  # what the system does to an engine that is killed
    async with asyncio.timeout(5):
        assert await process.wait() == 0
