"""Stages on this machine are killed and stopped in every phase: the answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import StageLost
from engine.events import EngineState, Notice, TokensCommitted
from engine.protocol.messages import SamplingSettings
from engine.stage.child import LocalStage
from engine.timeouts import TIMEOUTS
from tests.faults.conftest import Undisturbed
from tests.faults.harness import (
    ANSWERED,
    DEADLINE,
    NOTICED,
    Disturbed,
    disturbed,
    in_decode,
    in_prefill,
    killing,
    pipelined,
    plan,
    slowly,
    stopping,
)
from tests.faults.processes import is_gone

pytestmark = pytest.mark.asyncio(loop_scope="module")

HASTY_LOADING = replace(TIMEOUTS, load_silent=4.0)
LONG = "Repeat what I say. " * 40
PHASES = {"prefill": in_prefill, "decode": in_decode}


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_stage_killed_in_an_answer_is_replaced_and_the_answer_goes_on(
    three_stages: Disturbed, undisturbed: Undisturbed, phase: str, victim: int
) -> None:
    running = three_stages
    running.trap(PHASES[phase], killing(running, victim))
    question = f"{phase} {victim} {LONG}"  # of its own, or the caches would hold it already
    result = await running.ask(question)
    assert running.struck.is_set()
    assert result["token_ids"] == await undisturbed(question)
    assert running.noticed_after(victim) < NOTICED
    assert result["stages"][victim]["restarts"] >= 1
    told = [(event["kind"], event.get("code")) for event in result["events"]]
    assert ("stage", None) in told
    assert ("notice", "recovered") in told
    await running.state_of(victim, "ready")


@pytest.mark.parametrize("victim", [1, 2])
async def test_a_stopped_stage_counts_as_dead(
    three_stages: Disturbed, undisturbed: Undisturbed, victim: int
) -> None:
    running = three_stages
    pid = running.pid(victim)
    running.trap(in_decode, stopping(running, victim))
    result = await running.ask()
    assert result["token_ids"] == await undisturbed()
    assert running.noticed_after(victim) < NOTICED
    assert is_gone(pid), "what hangs is killed"


async def test_both_stages_killed_at_once(three_stages: Disturbed, undisturbed: Undisturbed) -> None:
    running = three_stages

    def kill_both() -> None:
        killing(running, 1)()
        killing(running, 2)()

    running.trap(in_decode, kill_both)
    result = await running.ask()
    assert result["token_ids"] == await undisturbed()


@pytest.mark.parametrize("victim", [1, 2])
async def test_a_stage_killed_while_idle_is_replaced_for_the_next_answer(
    three_stages: Disturbed, undisturbed: Undisturbed, victim: int
) -> None:
    running = three_stages
    await running.ask(max_tokens=5)
    running.strike(killing(running, victim))
    lost = await running.state_of(victim, "unreachable")
    assert running.noticed_after(victim) < NOTICED
    assert f"stage {victim}" in lost.reason
    assert (await running.ask())["token_ids"] == await undisturbed()


async def test_a_stage_stopped_while_idle_does_not_hold_the_next_answer_up(
    three_stages: Disturbed, undisturbed: Undisturbed
) -> None:
    running = three_stages
    running.strike(stopping(running, 1))  # the next answer begins before a heartbeat is missed
    async with asyncio.timeout(DEADLINE):
        assert (await running.ask())["token_ids"] == await undisturbed()


async def test_cancelling_while_a_stage_is_replaced_ends_at_once_and_loses_nothing(
    three_stages: Disturbed, undisturbed: Undisturbed
) -> None:
    running = three_stages
    running.trap(in_decode, stopping(running, 2))
    answer = asyncio.create_task(running.ask(max_tokens=1000))
    async with asyncio.timeout(DEADLINE):
        while running.engine.state.state != "recovering":
            await asyncio.sleep(0.01)
    running.engine.cancel(running.request)
    async with asyncio.timeout(ANSWERED):
        result = await answer
    assert result["finish_reason"] == "cancelled"
    known = await undisturbed(max_tokens=1000)
    assert result["token_ids"] == known[: len(result["token_ids"])]
    assert (await running.ask())["token_ids"] == await undisturbed()


async def test_a_stage_killed_under_several_windows(model: Path, undisturbed: Undisturbed) -> None:
    # With itself as its draft model every draft is right, and there is always a window to send.
    drafted = replace(
        plan(model, **slowly(20)),
        speculation=replace(plan(model).speculation, strategy="draft", draft_model=str(model)),
    )
    greedy = {"sampling": SamplingSettings(), "max_tokens": 150}
    async with disturbed(drafted) as running:
        for victim in (1, 2):
            running.trap(pipelined, killing(running, victim))
            result = await running.ask(**greedy)
            assert running.struck.is_set(), "no two windows were under way"
            assert result["token_ids"] == await undisturbed(**greedy)
            assert result["stages"][victim]["restarts"] == 1


async def test_a_stage_that_is_killed_again_and_again_ends_the_answer_with_its_tokens(
    model: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disturbed(plan(model)) as running:
        start = LocalStage.start

        async def start_and_die(stage: LocalStage, progress: object = None) -> None:
            await start(stage)
            os.kill(stage.pid, signal.SIGKILL)

        monkeypatch.setattr("engine.coordinator.generation.RECOVERIES", 1)
        monkeypatch.setattr(LocalStage, "start", start_and_die)
        running.trap(in_decode, killing(running, 2))
        result = await running.ask()
        assert result["finish_reason"] == "error"
        assert result["error"]["code"] == "stage-lost"
        assert "stage 2" in result["error"]["message"]
        known = await undisturbed()
        assert 0 < len(result["token_ids"]) < len(known)
        assert result["token_ids"] == known[: len(result["token_ids"])]
        monkeypatch.undo()
        assert (await running.ask())["token_ids"] == known


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_stage_struck_while_it_loads_is_started_once_more(
    model: Path, undisturbed: Undisturbed, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.stage.child.TIMEOUTS", HASTY_LOADING)
    running = Disturbed(plan(model, (3,)))
    starting = asyncio.create_task(running.engine.start())
    try:
        async with asyncio.timeout(DEADLINE):
            stage = await _loading_stage(running)
            os.kill(stage.pid, number)
            await starting
        assert stage.restarts == 1
        assert (await running.ask())["token_ids"] == await undisturbed()
    finally:
        await running.engine.close()


async def test_a_stage_killed_twice_while_it_loads_is_an_error_of_one_line(model: Path) -> None:
    running = Disturbed(plan(model, (3,)))
    starting = asyncio.create_task(running.engine.start())
    try:
        async with asyncio.timeout(DEADLINE):
            stage = await _loading_stage(running)
            os.kill(first := stage.pid, signal.SIGKILL)
            while stage.pid in (0, first):
                await asyncio.sleep(0.005)
            os.kill(stage.pid, signal.SIGKILL)
            with pytest.raises(StageLost, match=r"stage 1 .* did not start: killed by signal 9"):
                await starting
    finally:
        await running.engine.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_shutting_down_does_not_wait_for_a_dead_stage(model: Path, number: int) -> None:
    running = Disturbed(plan(model))
    async with asyncio.timeout(DEADLINE):
        await running.engine.start()
        pids = [running.pid(1), running.pid(2)]
        answer = asyncio.create_task(running.ask(max_tokens=1000))
        while not running.of_kind(TokensCommitted):
            await asyncio.sleep(0.005)
        os.kill(pids[0], number)
    async with asyncio.timeout(2 * ANSWERED):
        await running.engine.close()
        await answer
    assert all(map(is_gone, pids))


async def test_the_states_say_since_when_and_why(three_stages: Disturbed) -> None:
    running = three_stages
    running.strike(killing(running, 1))
    lost = await running.state_of(1, "unreachable")
    assert running.struck_at <= lost.since <= lost.at
    await running.ask(max_tokens=3)
    ready = await running.state_of(1, "ready")
    assert ready.since > lost.since
    engine_states = [event.state for event in running.of_kind(EngineState)]
    assert engine_states[-2:] == ["recovering", "ready"]
    assert any(notice.code == "stage-lost" for notice in running.of_kind(Notice))


async def _loading_stage(running: Disturbed) -> LocalStage:
    """The first local stage, as soon as it has a process."""
    while True:
        stages = running.engine._stages
        if stages is not None and stages._local and stages._local[0].pid:
            return stages._local[0]
        await asyncio.sleep(0.005)
