"""Links that are delayed differently while the engine runs, and the round trips that front ends are told."""

from __future__ import annotations

import pytest

from engine.client.requests import emulate_request, emulation_of
from engine.errors import UsageError
from engine.events import StageState, WindowDone
from engine.protocol.messages import LinkEmulation
from tests.coordinator.conftest import StartEngine, plain_plan


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="module")
async def test_another_delay_holds_from_the_next_answer_on_and_is_measured(start_engine: StartEngine) -> None:
    running = await start_engine(plain_plan())
    before = await running.ask("Why is the sky blue?", max_tokens=6)
    pids = {state.pid for state in running.of_kind(StageState) if state.index == 1 and state.pid}
    running.engine.set_emulation(LinkEmulation(rtt_ms=60))
    told: list[float] = []
    while not told or told[-1] < 50:
        after = await running.ask("Why is the sky blue?", max_tokens=6)
        states = [state for state in running.of_kind(StageState) if state.index == 1 and state.pid]
        told = [state.rtt_ms for state in states]
    assert after["token_ids"] == before["token_ids"]
    elapsed = [done.elapsed_ms for done in running.of_kind(WindowDone) if done.request == running.request]
    assert min(elapsed) > 50  # the delay itself: no machine is faster
    assert {state.pid for state in states} == pids  # the process of the stage goes on


def test_a_request_for_a_delay_is_checked() -> None:
    wanted = LinkEmulation(rtt_ms=20, mbps=100)
    assert emulation_of(emulate_request(wanted)["values"]) == wanted
    with pytest.raises(UsageError, match=r"emulate\.rtt_ms must be a number between 0 and 60000"):
        emulation_of({"rtt_ms": -1.0})
    with pytest.raises(UsageError, match="emulate has no field 'rtt'; did you mean rtt_ms"):
        emulation_of({"rtt": 1.0})
