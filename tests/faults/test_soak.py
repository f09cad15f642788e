"""A short soak: every answer is right or ends with a clear error, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from tests.faults.soak import soak

FAULTS = 6
GROWTH = 48 << 20  # bytes: three engines were loaded and closed in this process meanwhile


async def test_a_short_soak(tmp_path: Path) -> None:
    report = await soak(FAULTS, seed=466, folder=tmp_path)
    assert len(report.outcomes) == FAULTS
    assert {outcome.arena for outcome in report.outcomes} == {"local", "elsewhere", "engine"}
    assert sum(outcome.equal for outcome in report.outcomes) >= FAULTS - 1
    before, after = report.before, report.after
    assert before is not None
    assert after is not None
    assert report.left_running == 0
    assert after.children == before.children
    assert after.descriptors == before.descriptors
    assert after.threads == before.threads
    assert after.tasks == before.tasks
    assert after.files <= before.files + 1, "only the log of the engine"
    assert after.resident - before.resident < GROWTH
