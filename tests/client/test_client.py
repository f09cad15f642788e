"""Starting, using and losing an engine, against a small engine in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.client.client import EngineClient, LocalEngine, RunningEngine
from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.errors import EngineLost, LinkError, SkippyError, Unauthorized
from engine.events import EngineState, Event, Notice, RequestFinished, RequestStarted, TokensCommitted
from engine.timeouts import TIMEOUTS

FAKE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))
HASTY = replace(TIMEOUTS, engine_heartbeat=0.1, engine_silent=0.5)


def target(tmp_path: Path, model: str = "fake") -> LocalEngine:
    return LocalEngine(RunPlan(model=model), tmp_path / "engine.log", FAKE)


def ask(text: str, request: str = "r1") -> GenerateRequest:
    return GenerateRequest(request, messages=({"role": "user", "content": text},))


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def text_of(events: list[Event]) -> str:
    return "".join(
        text for event in events if isinstance(event, TokensCommitted) for _, _, text in event.tokens
    )


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_an_engine_tells_its_state_and_answers(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        first = await client.next_event()
        assert first == EngineState(state="loading", detail="reading the model", fraction=0.5)
        events = await collect(client.generate(ask("one two three")))
    assert text_of(events) == "one two three"
    assert isinstance(events[-1], RequestFinished)
    assert events[-1].result["text"] == "one two three"


async def test_leaving_ends_the_engine_that_we_started(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        pid = client.pid
        assert is_running(pid)
    assert not is_running(pid)


async def test_a_cancelled_answer_ends_and_the_next_one_works(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        reason = ""
        async for event in client.generate(ask("endless")):
            if isinstance(event, TokensCommitted) and event.window == 5:
                await client.cancel("r1")
            if isinstance(event, RequestFinished):
                reason = event.finish_reason
        assert reason == "cancelled"
        assert text_of(await collect(client.generate(ask("again", "r2")))) == "again"


async def test_changed_settings_reach_the_engine(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        await client.set_values({"strategy": "mtp"})
        finished = (await collect(client.generate(ask("x"))))[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.result["strategy"] == "mtp"


async def test_a_killed_engine_is_named_with_its_log_and_can_be_started_again(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        with pytest.raises(EngineLost, match=r"killed by signal 9.*engine\.log") as caught:
            await collect(client.generate(ask("now die")))
        assert caught.value.exit_code == 1
        with pytest.raises(EngineLost):
            await client.send(ask("again").to_dict())
        await client.restart()
        assert text_of(await collect(client.generate(ask("back")))) == "back"


async def test_another_engine_goes_on_with_the_answer_of_a_killed_one(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        first = client.pid
        events = await collect(client.generate(ask("one two stumble three")))
        assert client.pid != first
        assert text_of(events) == "one two stumble three"
        assert len([event for event in events if isinstance(event, RequestStarted)]) == 1
        notices = [event for event in events if isinstance(event, Notice)]
        assert [(notice.level, notice.code) for notice in notices] == [("warning", "engine-lost")]
        assert "killed by signal 9" in notices[0].message
        finished = events[-1]
        assert isinstance(finished, RequestFinished)
        assert finished.result["text"] == "one two stumble three"


async def test_an_engine_that_was_killed_while_idle_is_replaced_for_the_next_answer(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        os.kill(client.pid, signal.SIGKILL)
        assert text_of(await collect(client.generate(ask("still here")))) == "still here"


async def test_a_fresh_engine_is_told_the_changed_settings(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        await client.set_values({"strategy": "mtp"})
        finished = (await collect(client.generate(ask("one stumble two"))))[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.result["strategy"] == "mtp"


async def test_an_engine_that_is_opened_again_has_the_changed_settings(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        await client.set_values({"strategy": "mtp"})
        await client.restart()
        finished = (await collect(client.generate(ask("one two"))))[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.result["strategy"] == "mtp"


async def test_an_answer_is_not_resumed_when_tokens_are_missing(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        with pytest.raises(EngineLost):
            await collect(client.generate(ask("one drop stumble")))


async def test_cancelling_while_another_engine_starts_ends_the_answer(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as client:
        events: list[Event] = []
        async for event in client.generate(ask("one two stumble three")):
            events.append(event)
            if isinstance(event, Notice):
                await client.cancel("r1")
    finished = events[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.finish_reason == "cancelled"
    assert finished.result["token_ids"] == [0, 1]


async def test_an_engine_that_hangs_is_as_good_as_dead(tmp_path: Path) -> None:
    client = EngineClient(target(tmp_path), HASTY)
    await client.open()
    with pytest.raises(EngineLost, match=r"has not answered"):
        await collect(client.generate(ask("now hang")))
    pid = client.pid
    await client.close()
    assert not is_running(pid)


async def test_a_front_end_that_reads_late_loses_neither_the_link_nor_events(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path), HASTY) as client:
        request = replace(ask(" ".join(["word"] * 2000)), max_tokens=2000)
        await client.send(request.to_dict())
        await asyncio.sleep(4 * HASTY.engine_heartbeat)  # several pings go by while nobody takes an event
        events = []
        while not isinstance(event := await client.next_event(), RequestFinished):
            events.append(event)
    assert len([event for event in events if isinstance(event, TokensCommitted)]) == 2000


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("crash", EngineLost, r"ended with code 1 \(RuntimeError: out of paper\).*engine\.log"),
        ("silent", EngineLost, r"said nothing for 1 s.*engine\.log"),
        ("refused", SkippyError, r"there is no such model; try demo"),
    ],
)
async def test_an_engine_that_does_not_start_says_why(
    tmp_path: Path, model: str, error: type[SkippyError], message: str
) -> None:
    timeouts = replace(TIMEOUTS, engine_start=1.0 if model == "silent" else TIMEOUTS.engine_start)
    with pytest.raises(error, match=message) as caught:
        await EngineClient(target(tmp_path, model), timeouts).open()
    assert caught.value.exit_code == (2 if model == "refused" else 1)


async def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    missing = LocalEngine(RunPlan(), tmp_path / "engine.log", (str(tmp_path / "nothing"),))
    with pytest.raises(EngineLost, match="cannot start the engine: No such file"):
        await EngineClient(missing).open()


async def test_attaching_needs_the_token(tmp_path: Path) -> None:
    async with EngineClient(target(tmp_path)) as owner:
        process = owner._process
        assert process is not None
        with pytest.raises(Unauthorized, match="refused our token; give its own: --token-file"):
            await EngineClient(RunningEngine(process.url, "wrong")).open()
        async with EngineClient(RunningEngine(process.url, process.token)) as guest:
            assert text_of(await collect(guest.generate(ask("hello")))) == "hello"
        assert text_of(await collect(owner.generate(ask("still here", "r2")))) == "still here"


async def test_an_address_where_nobody_listens_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"nothing listens at ws://127\.0\.0\.1:1; start the engine"):
        await EngineClient(RunningEngine("ws://127.0.0.1:1")).open()


async def test_an_engine_ends_with_its_front_end_after_kill_9(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from engine.client.client import *\n"
        f"target = LocalEngine(RunPlan(), Path({str(tmp_path / 'engine.log')!r}), {FAKE!r})\n"
        "async def main():\n"
        "    client = EngineClient(target); await client.open()\n"
        "    print(client.pid, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_running(child)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    async with asyncio.timeout(10):
        while is_running(child):
            await asyncio.sleep(0.02)
