"""Links between the engine and its stages are cut, frozen, slowed and damaged on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.events import Notice, WindowDone, WindowSent
from engine.protocol.messages import LinkEmulation, SamplingSettings
from tests.faults.conftest import Undisturbed
from tests.faults.elsewhere import Proxy, StageElsewhere, elsewhere
from tests.faults.harness import DEADLINE, NOTICED, Disturbed, disturbed, in_decode, in_prefill, remote_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")

LANE, RETURN = 0, 1  # what connects to the last stage, in this order


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(model: Path) -> AsyncIterator[tuple[StageElsewhere, StageElsewhere]]:
    """Two running stages."""
    middle = StageElsewhere(model, "2:4", ["--sequences", "4"])
    last = StageElsewhere(model, "4:6", ["--sequences", "4"])
    async with elsewhere(middle, last):
        yield middle, last


@dataclass
class Network:
    """An engine whose links all go through proxies."""

    running: Disturbed
    middle: Proxy
    last: Proxy

    def warnings(self) -> list[str]:
        """Codes of the warnings so far."""
        return [notice.code for notice in self.running.of_kind(Notice) if notice.level == "warning"]


@asynccontextmanager
async def network(
    model: Path,
    stages: tuple[StageElsewhere, StageElsewhere],
    *,
    refuse: tuple[int, ...] = (),
    **topology: Any,
) -> AsyncIterator[Network]:
    """Both stages behind a proxy each; the last refuses the connections with these numbers."""
    async with AsyncExitStack() as stack:
        middle, last = [await stack.enter_async_context(Proxy(stage).listening()) for stage in stages]
        last.refused.update(refuse)
        plan = remote_plan(model, middle.url, last.url, **topology)
        running = await stack.enter_async_context(disturbed(plan))
        yield Network(running, middle, last)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def links(model: Path, stages: tuple[StageElsewhere, StageElsewhere]) -> AsyncIterator[Network]:
    """Shared by the tests that leave everything in order."""
    async with network(model, stages) as found:
        yield found


@pytest.mark.parametrize("where", ["middle", "last"])
@pytest.mark.parametrize("phase", [in_prefill, in_decode])
async def test_a_cut_link_is_made_again_and_the_answer_goes_on(
    links: Network, undisturbed: Undisturbed, phase: Any, where: str
) -> None:
    question = f"{phase.__name__} {where}: " + "Repeat what I say. " * 20
    links.running.trap(phase, getattr(links, where).cut)
    result = await links.running.ask(question)
    assert links.running.struck.is_set()
    assert result["token_ids"] == await undisturbed(question)
    assert result["speculative"]["direct_replies"] > 0


@pytest.mark.parametrize("where", ["middle", "last"])
async def test_a_link_that_falls_silent_is_given_up_and_the_answer_goes_on(
    links: Network, undisturbed: Undisturbed, where: str
) -> None:
    running, proxy = links.running, getattr(links, where)
    running.trap(in_decode, proxy.freeze)
    answer = asyncio.create_task(running.ask())
    async with asyncio.timeout(DEADLINE):
        while running.engine.state.state != "recovering" or not running.struck.is_set():
            await asyncio.sleep(0.01)
    assert running.events[-1].at - running.struck_at < 2 * NOTICED
    proxy.thaw()
    assert (await answer)["token_ids"] == await undisturbed()


async def test_a_lane_that_died_while_idle_is_replaced_at_the_next_request(
    links: Network, undisturbed: Undisturbed
) -> None:
    await links.running.ask(max_tokens=3)
    links.middle.cut()  # the next request comes before anybody has noticed
    assert (await links.running.ask())["token_ids"] == await undisturbed()


async def test_damaged_frames_never_become_text(links: Network, undisturbed: Undisturbed) -> None:
    running = links.running

    def damage() -> None:
        links.middle.connections[-1].corrupt = 1

    for _ in range(3):
        running.trap(in_decode, damage)
        result = await running.ask()
        assert links.middle.connections[-1].corrupt == 0
        assert result["token_ids"] == await undisturbed()


async def test_a_blocked_return_link_costs_a_warning_and_nothing_else(
    model: Path, stages: tuple[StageElsewhere, StageElsewhere], undisturbed: Undisturbed
) -> None:
    async with network(model, stages, refuse=(RETURN,)) as found:
        result = await found.running.ask()
        assert result["token_ids"] == await undisturbed()
        assert found.warnings() == ["return-link"]
        assert result["speculative"]["direct_replies"] == 0
        assert result["speculative"]["fallback_replies"] > 0


@pytest.mark.parametrize("fault", ["cut", "freeze"])
async def test_a_return_link_that_breaks_in_an_answer_is_replaced_by_the_lane(
    model: Path, stages: tuple[StageElsewhere, StageElsewhere], undisturbed: Undisturbed, fault: str
) -> None:
    async with network(model, stages) as found:
        direct = found.last.connections[RETURN]
        found.running.trap(in_decode, getattr(direct, fault))
        result = await found.running.ask(max_tokens=400)
        assert result["token_ids"] == await undisturbed(max_tokens=400)
        assert "return-link" in found.warnings()
        assert result["speculative"]["fallback_replies"] > 0
        again = await found.running.ask()
        assert again["token_ids"] == await undisturbed()


async def test_a_slow_and_jittery_link_changes_no_text(
    model: Path, stages: tuple[StageElsewhere, StageElsewhere], undisturbed: Undisturbed
) -> None:
    greedy = {"sampling": SamplingSettings(), "max_tokens": 120}
    emulation = LinkEmulation(rtt_ms=20, jitter_ms=20, mbps=50, seed=3)
    async with network(model, stages, emulation=emulation) as found:
        found.last.delay = 0.002
        plan = found.running.engine.plan
        found.running.engine.plan = replace(
            plan, speculation=replace(plan.speculation, strategy="ngram-suffix", pipeline_depth=8)
        )
        result = await found.running.ask(**greedy)
        assert result["token_ids"] == await undisturbed(**greedy)


async def test_a_slow_stage_holds_the_others_back(
    model: Path, stages: tuple[StageElsewhere, StageElsewhere], undisturbed: Undisturbed
) -> None:
    greedy = {"sampling": SamplingSettings(), "max_tokens": 40}
    async with network(model, stages) as found:
        found.last.delay = 0.05  # one piece after the other, so windows pile up in front of it
        plan = found.running.engine.plan
        found.running.engine.plan = replace(
            plan, speculation=replace(plan.speculation, strategy="ngram-suffix", pipeline_depth=8)
        )
        result = await found.running.ask("a b c " * 60, **greedy)
        assert result["token_ids"] == await undisturbed("a b c " * 60, **greedy)
        assert max(event.in_flight for event in found.running.of_kind(WindowSent)) <= 8
        sent = [event.window for event in found.running.of_kind(WindowSent)]
        assert [event.window for event in found.running.of_kind(WindowDone)] == sent
