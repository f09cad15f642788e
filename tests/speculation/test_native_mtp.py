"""Which drafts are used, and the cooldown after a rejection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft
from engine.speculation.loop import DecodeLoop
from engine.speculation.native_mtp import NativeMtp
from engine.speculation.statistics import Statistics
from engine.speculation.types import LoopContext
from tests.speculation.driving import answer, only_window, scripted
from tests.speculation.simulator import FakeMtp

PLAN = SpeculationPlan(strategy="mtp", window_policy="fixed", draft_max=2)
HISTORY = [5, 6, 7]


def mtp(plan: SpeculationPlan = PLAN) -> NativeMtp:
    return NativeMtp(plan, Statistics())


def test_a_draft_for_the_next_position_is_used_once() -> None:
    proposer = mtp()
    proposer.offer(Draft(3, 7, (8, 9), (0.9, 0.4)), HISTORY)
    taken = proposer.take(10)
    assert [(c.token, c.source, c.evidence, c.confidence) for c in taken] == [
        (8, "mtp", 0, 0.9),
        (9, "mtp", 1, 0.4),
    ]
    assert proposer.take(10) == []


@pytest.mark.parametrize(
    "draft",
    [Draft(4, 7, (8,), ()), Draft(2, 7, (8,), ()), Draft(3, 6, (8,), ()), None],
    ids=["later", "earlier", "after another token", "none"],
)
def test_a_draft_for_anything_else_is_not(draft: Draft | None) -> None:
    proposer = mtp()
    proposer.offer(draft, HISTORY)
    assert not proposer.ready
    assert proposer.take(10) == []


def test_a_draft_shorter_than_the_minimum_counts_as_none() -> None:
    proposer = mtp(replace(PLAN, draft_min=2))
    proposer.offer(Draft(3, 7, (8,), ()), HISTORY)
    assert proposer.take(10) == []


@pytest.mark.parametrize(("budget", "draft_max", "expected"), [(1, 4, 1), (9, 2, 2), (9, 9, 3), (0, 4, 0)])
def test_a_draft_is_cut_to_budget_and_setting(budget: int, draft_max: int, expected: int) -> None:
    proposer = mtp(replace(PLAN, draft_max=draft_max))
    proposer.offer(Draft(3, 7, (8, 9, 10), ()), HISTORY)
    assert len(proposer.take(budget)) == expected


def test_a_draft_that_follows_a_wrong_guess_of_the_last_stage_is_dropped() -> None:
    """The draft comes with a typed position and token; a loop that committed something else ignores it."""
    loop = DecodeLoop(
        PLAN, LoopContext(prompt=[1, 2], max_tokens=10, context_limit=99, window_rows=8, native_mtp=True)
    )
    window = only_window(loop.start(0.0))
    following = only_window(loop.on_reply(answer(window, [3], draft=Draft(3, 4, (9,), ())), 1.0))
    assert following.tokens == (3,)


def widths_and_budgets(plan: SpeculationPlan, acceptance: float) -> tuple[list[tuple[int, int]], Statistics]:
    simulation = scripted([1, 2], list(range(10, 50)), plan, mtp=FakeMtp(acceptance))
    result = simulation.run()
    return [(window.width, window.draft_budget) for window in result.plans], simulation.loop.statistics


def test_a_rejection_starts_plain_steps_whose_first_drafts_are_not_asked_for() -> None:
    plan = replace(PLAN, draft_max=1, reject_cooldown_tokens=3, suppress_cooldown_draft_limit=2)
    windows, statistics = widths_and_budgets(plan, acceptance=0.0)
    # a plain step with a draft, the rejected draft, three plain steps: the last of them asks again
    assert windows[1:9] == [(1, 1), (0, 0), (0, 0), (0, 1), (1, 1), (0, 0), (0, 0), (0, 1)]
    assert statistics.cooldowns == statistics.rejected_windows
    assert statistics.suppressed_drafts == 2 * statistics.cooldowns


def test_without_a_cooldown_drafting_goes_on() -> None:
    windows, statistics = widths_and_budgets(replace(PLAN, draft_max=1), acceptance=0.0)
    assert all(width == 1 for width, _ in windows[1:-2])  # at the end there is no room for drafts
    assert statistics.cooldowns == 0


def test_accepted_drafts_start_no_cooldown() -> None:
    plan = replace(PLAN, draft_max=1, reject_cooldown_tokens=3)
    windows, statistics = widths_and_budgets(plan, acceptance=1.0)
    assert all(width == 1 for width, _ in windows[1:-1])
    assert statistics.cooldowns == 0
