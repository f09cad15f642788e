"""Stages elsewhere are lost, come back, are replaced by their standbys, or stay away."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.errors import HandshakeRefused, Unauthorized
from engine.events import Notice, StageState
from engine.protocol.messages import Hello, Hop, Role, StageStatus
from engine.timeouts import TIMEOUTS
from engine.transport import open_link
from tests.faults.conftest import Undisturbed
from tests.faults.elsewhere import StageElsewhere, elsewhere
from tests.faults.harness import ANSWERED, DEADLINE, NOTICED, Disturbed, disturbed, in_decode, remote_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "for-these-tests"


@dataclass
class Machines:
    """Layers 2:4 and 4:6 on one machine each, and a standby for the last, which serves one engine only."""

    middle: StageElsewhere
    last: StageElsewhere
    standby: StageElsewhere


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machines]:
    """Running stages. The first has its token from a file, the others from the environment."""
    token_file = tmp_path_factory.mktemp("token") / "token"
    token_file.write_text(TOKEN + "\n")
    found = Machines(
        StageElsewhere(model, "2:4", ["--token-file", str(token_file), "--sequences", "2"]),
        StageElsewhere(model, "4:6", ["--sequences", "2"], env={"SKIPPY_TOKEN": TOKEN}),
        StageElsewhere(model, "4:6", env={"SKIPPY_TOKEN": TOKEN}),
    )
    async with elsewhere(found.middle, found.last, found.standby):
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(machines: Machines, model: Path) -> AsyncIterator[Disturbed]:
    """An engine that uses the middle and the last machine."""
    async with disturbed(remote_plan(model, machines.middle.url, machines.last.url, token=TOKEN)) as engine:
        yield engine


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def repaired(machines: Machines) -> AsyncIterator[None]:
    """Every test leaves all machines running."""
    yield
    for stage in (machines.middle, machines.last, machines.standby):
        if stage.process is None or stage.process.returncode is not None:
            await stage.start()


@pytest.mark.parametrize("victim", [1, 2])
async def test_a_stage_that_is_started_again_is_dialled_again_and_the_answer_goes_on(
    running: Disturbed, machines: Machines, undisturbed: Undisturbed, victim: int
) -> None:
    stage = (machines.middle, machines.last)[victim - 1]
    running.trap(in_decode, stage.kill)
    answer = asyncio.create_task(running.ask())
    await running.struck.wait()
    await stage.start()
    result = await answer
    assert result["token_ids"] == await undisturbed()
    assert running.noticed_after(victim) < NOTICED


async def test_a_stage_that_stays_away_ends_the_answer_with_its_tokens_and_the_cause(
    running: Disturbed, machines: Machines, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.coordinator.engine.TIMEOUTS", replace(TIMEOUTS, redial=2.0))
    running.trap(in_decode, machines.last.kill)
    result = await running.ask()
    took = time.monotonic() - running.struck_at
    known = await undisturbed()
    assert result["finish_reason"] == "error"
    assert result["error"]["code"] == "stage-lost"
    assert "stage 2" in result["error"]["message"]
    assert f"nothing listens at 127.0.0.1:{machines.last.port}" in result["error"]["message"]
    assert "\n" not in result["error"]["message"]
    assert result["error"]["hint"]
    assert 0 < len(result["token_ids"]) < len(known)
    assert result["token_ids"] == known[: len(result["token_ids"])]
    assert took < 2.0 + ANSWERED

    again = await running.ask()  # the engine lives, and a new request does not hang either
    assert again["error"]["code"] == "stage-lost"
    dialled = running.of_kind(StageState)[-1]
    assert dialled.state == "unreachable"
    assert dialled.since < dialled.at

    await machines.last.start()
    assert (await running.ask())["token_ids"] == known


async def test_a_new_request_fails_within_its_bound_while_a_stage_is_dead(
    running: Disturbed, machines: Machines, undisturbed: Undisturbed
) -> None:
    running.strike(machines.middle.kill)
    begun = time.monotonic()
    result = await running.ask()
    assert time.monotonic() - begun < ANSWERED
    assert result["error"]["code"] == "stage-lost"
    await machines.middle.start()
    assert (await running.ask())["token_ids"] == await undisturbed()


async def test_a_stage_that_hangs_and_goes_on_later(
    running: Disturbed, machines: Machines, undisturbed: Undisturbed
) -> None:
    running.trap(in_decode, lambda: machines.last.signal(signal.SIGSTOP))
    answer = asyncio.create_task(running.ask())
    async with asyncio.timeout(DEADLINE):
        await running.struck.wait()
        await running.state_of(2, "unreachable")
    assert running.noticed_after(2) < NOTICED
    machines.last.signal(signal.SIGCONT)
    assert (await answer)["token_ids"] == await undisturbed()


async def test_the_standby_takes_over_in_the_middle_of_an_answer(
    machines: Machines, model: Path, undisturbed: Undisturbed
) -> None:
    last = f"{machines.last.url},{machines.standby.url}"
    async with disturbed(remote_plan(model, machines.middle.url, last, token=TOKEN)) as engine:
        assert (await engine.ask(max_tokens=3))["stages"][2]["where"].endswith(str(machines.last.port))
        engine.trap(in_decode, machines.last.kill)
        result = await engine.ask()
        assert result["token_ids"] == await undisturbed()
        assert result["stages"][2]["where"].endswith(str(machines.standby.port))
        engine.trap(in_decode, machines.standby.kill)  # and back again
        answer = asyncio.create_task(engine.ask())
        await engine.struck.wait()
        await machines.last.start()
        assert (await answer)["token_ids"] == await undisturbed()
    await machines.standby.start()


async def test_an_engine_starts_on_the_standby_when_the_first_address_is_dead(
    machines: Machines, model: Path
) -> None:
    dead = "ws://127.0.0.1:1"
    async with disturbed(
        remote_plan(model, machines.middle.url, f"{dead},{machines.standby.url}", token=TOKEN)
    ) as engine:
        result = await engine.ask(max_tokens=3)
        assert result["stages"][2]["where"].endswith(str(machines.standby.port))


async def test_stages_free_the_sessions_of_a_coordinator_that_vanished(
    machines: Machines, model: Path, undisturbed: Undisturbed
) -> None:
    plan = remote_plan(model, machines.middle.url, machines.standby.url, token=TOKEN)
    async with disturbed(plan) as first:
        await first.ask(max_tokens=3)
        assert await _sessions(machines.standby) == 1
        for slot in first.engine._slots.slots:  # as when its process is killed: nobody says goodbye
            assert slot.chain is not None
            for link in (slot.chain._link, slot.chain._return):
                assert link is not None
                link._socket.abort()
    async with asyncio.timeout(DEADLINE):
        while await _sessions(machines.middle) or await _sessions(machines.standby):
            await asyncio.sleep(0.05)
    async with disturbed(
        remote_plan(model, machines.middle.url, machines.standby.url, token=TOKEN)
    ) as second:
        assert (await second.ask())["token_ids"] == await undisturbed()


async def test_two_engines_share_a_stage_one_after_the_other_without_a_wrong_answer(
    machines: Machines, model: Path, undisturbed: Undisturbed
) -> None:
    plan = remote_plan(model, machines.middle.url, machines.standby.url, token=TOKEN)
    async with disturbed(plan) as first, disturbed(plan) as second:
        assert (await first.ask())["token_ids"] == await undisturbed()
        answer = asyncio.create_task(second.ask())  # the only sequence is taken: it waits for its turn
        await asyncio.sleep(3 * TIMEOUTS.redial_pause)
        assert not answer.done()
        await first.engine.close()
        assert (await answer)["token_ids"] == await undisturbed()


async def test_a_window_wider_than_a_stage_allows_is_refused_at_the_handshake(
    machines: Machines, model: Path
) -> None:
    narrow = remote_plan(model, machines.middle.url, machines.last.url, token=TOKEN)
    wide = replace(narrow, speculation=replace(narrow.speculation, window_max=200))
    with pytest.raises(HandshakeRefused, match="window rows 201, the stage allows 1 to 128"):
        async with asyncio.timeout(ANSWERED), disturbed(wide):
            pass


def prompt_command(machines: Machines, model: Path, token_file: Path) -> list[str]:
    """`skippy-prompt` on the middle machine and the standby, with a long answer."""
    token_file.write_text(TOKEN)
    options = {
        "--model": str(model),
        "--token-file": str(token_file),
        "--max-tokens": "1500",
        "--ctx": "2048",
        "--emulate-rtt-ms": "10",
    }
    words = [word for option in options.items() for word in option]
    stages = ["--stage", machines.middle.url, "--stage", machines.standby.url]
    return [sys.executable, "-m", "engine.cli.prompt", *words, *stages, "--raw", "Tell me a story."]


async def test_a_command_line_keeps_the_text_and_names_the_stage_that_is_gone(
    machines: Machines, model: Path, tmp_path: Path
) -> None:
    command = prompt_command(machines, model, tmp_path / "token")
    prompt = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert prompt.stdout is not None
    async with asyncio.timeout(DEADLINE):
        begun = await prompt.stdout.read(8)
        machines.standby.kill()
        text, errors = await prompt.communicate()
    assert prompt.returncode == 1
    assert begun + text
    *_, last = errors.decode().splitlines()
    assert "stage 2" in last
    assert f"127.0.0.1:{machines.standby.port}" in last
    assert "start the stage there" in last


async def test_a_stage_serves_the_next_front_end_after_one_was_killed(
    machines: Machines, model: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    command = prompt_command(machines, model, tmp_path / "token")
    prompt = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert prompt.stdout is not None
    async with asyncio.timeout(DEADLINE):
        assert await prompt.stdout.read(8)
        assert await _sessions(machines.standby) == 1
        prompt.kill()
        await prompt.wait()
        while await _sessions(machines.standby):
            await asyncio.sleep(0.05)
    async with disturbed(
        remote_plan(model, machines.middle.url, machines.standby.url, token=TOKEN)
    ) as running:
        assert (await running.ask())["token_ids"] == await undisturbed()


@pytest.mark.parametrize("token", ["", "another"])
async def test_strangers_change_nothing(
    running: Disturbed, machines: Machines, undisturbed: Undisturbed, token: str
) -> None:
    control = Hello(role=Role.CONTROL, chain="stranger")
    with pytest.raises(Unauthorized):
        await open_link(machines.last.url, control, token=token)
    assert (await running.ask())["token_ids"] == await undisturbed()
    assert not [notice for notice in running.of_kind(Notice) if TOKEN in notice.message]


async def _sessions(stage: StageElsewhere) -> int:
    """How many sessions a stage holds."""
    hop = Hop(stage.url, TOKEN)
    link = await open_link(hop.url, Hello(role=Role.CONTROL, chain="tests"), token=hop.token)
    try:
        link.post(StageStatus(stage=0, state=""))
        async for message in link:
            if isinstance(message, StageStatus):
                return message.sessions
        raise AssertionError(link.reason)
    finally:
        await link.close()
