"""A computation that takes longer than any silence that is allowed: busy is not dead."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from engine.events import Notice
from engine.stage.process import StageSettings, load_worker
from engine.stage.service import StageService
from engine.timeouts import TIMEOUTS
from tests.faults.conftest import Undisturbed
from tests.faults.harness import DEADLINE, disturbed, remote_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_stage_that_computes_for_long_keeps_its_links(
    model: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = load_worker(StageSettings(str(model), 3, 6, threads=1, context=2048))
    service = StageService(worker)
    forward, calls = worker.stage.forward, 0

    def slow_forward(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            time.sleep(2 * TIMEOUTS.silent)  # on the compute thread, as a slow machine would
        return forward(*arguments, **options)

    monkeypatch.setattr(worker.stage, "forward", slow_forward)
    url = await service.listen("127.0.0.1", 0, token="")
    try:
        async with asyncio.timeout(DEADLINE), disturbed(remote_plan(model, url)) as running:
            asked = time.monotonic()
            answer = asyncio.create_task(running.ask())
            chain = running.engine._slots.slots[0].chain
            assert chain is not None
            assert chain._link is not None
            while chain._link.peer_busy_ms < 1000 * TIMEOUTS.silent:
                assert not answer.done(), "it never said that it is busy"
                await asyncio.sleep(0.05)
            assert (await answer)["token_ids"] == await undisturbed()
            assert time.monotonic() - asked > 2 * TIMEOUTS.silent
            assert not [notice for notice in running.of_kind(Notice) if notice.level == "warning"]
    finally:
        await service.close()
        worker.close()
