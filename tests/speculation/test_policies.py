"""The fixed and the adaptive width, and the gate that lets windows follow each other."""

from __future__ import annotations

import pytest

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import StageTime
from engine.speculation.acceptance import Acceptance
from engine.speculation.costs import CostModel
from engine.speculation.gate import NEEDED, REMEMBERED, PipelineGate
from engine.speculation.policies import PLAIN, AdaptivePolicy, DraftNeed, FixedPolicy, Offer, Verified
from engine.speculation.statistics import PipelineCount, WidthCount
from engine.speculation.stream import Candidate


def candidates(count: int, matched: int = 3) -> list[Candidate]:
    return [Candidate(token, "ngram", matched + token) for token in range(count)]


def offer(count: int, *, matched: int = 3, sent: int = 0, depth: int = 1, limit: int = 16) -> Offer:
    return Offer(candidates(count, matched), sent, refillable=True, width_limit=limit, depth_limit=depth)


def verified(
    width: int, accepted: int, *, rejected: bool = False, continued: bool | None = None, probe: bool = False
) -> Verified:
    return Verified(width, accepted, accepted + 1, rejected, continued, 30.0, 5.0, 25.0, probe)


def gate(first_ms: float = 5.0, downstream_ms: float = 25.0) -> tuple[PipelineGate, PipelineCount]:
    """A gate that knows what a window costs, and nothing else yet."""
    costs, counters = CostModel(), PipelineCount()
    for rows in (1, 17):
        times = (StageTime(0, 0, round(first_ms * 1000)),)
        costs.observe_window(rows, times, first_ms + downstream_ms)
    return PipelineGate(Acceptance(), costs, counters), counters


def adaptive(window_min: int = 1, window_max: int = 4) -> tuple[AdaptivePolicy, WidthCount]:
    counters = WidthCount()
    plan = SpeculationPlan(window_policy="adaptive", window_min=window_min, window_max=window_max)
    return AdaptivePolicy(plan, gate()[0], counters), counters


def test_the_fixed_width_is_the_largest_allowed() -> None:
    policy = FixedPolicy(SpeculationPlan(window_policy="fixed", window_max=6), gate()[0])
    assert policy.choose(offer(40)).width == 6
    assert policy.choose(offer(40, limit=3)).width == 3
    assert policy.choose(offer(0)) == PLAIN


def test_the_adaptive_width_grows_on_whole_windows_and_shrinks_on_others() -> None:
    policy, counters = adaptive()
    widths = [policy.width]
    for window in (verified(2, 2), verified(3, 3), verified(4, 4), verified(4, 1, rejected=True)):
        policy.verified(window)
        widths.append(policy.width)
    assert widths == [2, 3, 4, 4, 3]
    assert (counters.grows, counters.shrinks) == (2, 1)


def test_it_shrinks_to_the_minimum_and_says_so() -> None:
    """B10: rejections must shrink the window, and be seen to."""
    policy, counters = adaptive(window_min=1)
    for _ in range(5):
        policy.verified(verified(policy.width, 0, rejected=True))
    assert (policy.width, counters.shrinks) == (1, 1)


@pytest.mark.parametrize(("low", "high", "start"), [(1, 4, 2), (3, 8, 3), (1, 1, 1)])
def test_it_starts_at_two_within_its_bounds(low: int, high: int, start: int) -> None:
    assert adaptive(low, high)[0].width == start


def test_plain_steps_leave_the_width_alone() -> None:
    policy, _ = adaptive()
    policy.verified(verified(0, 0))
    assert policy.width == 2


def test_short_candidates_are_no_shrink() -> None:
    policy, counters = adaptive()
    assert policy.choose(offer(1)).width == 2
    assert counters.shrinks == 0


def test_a_draft_is_asked_for_where_nothing_else_follows() -> None:
    policy = FixedPolicy(SpeculationPlan(window_policy="fixed", draft_max=3), gate()[0])
    assert [
        policy.draft_budget(DraftNeed(1.0, 10, False, 0, 100)),
        policy.draft_budget(DraftNeed(1.0, 2, False, 0, 100)),
        policy.draft_budget(DraftNeed(0.9, 10, False, 0, 100)),
    ] == [
        3,
        2,
        0,
    ]


# The gate


def fill(subject: PipelineGate, width: int, continued: int, count: int = NEEDED) -> None:
    """Observe `count` windows, `continued` of which went on."""
    for number in range(count):
        subject.verified(width, number < continued, 5.0, 25.0)


@pytest.mark.parametrize(("continued", "permitted"), [(8, True), (5, True), (4, False), (0, False)])
def test_the_gate_weighs_what_is_saved_against_what_is_lost(continued: int, permitted: bool) -> None:
    """c * d > 1.15 * (1 - c) * max(s, d) with s < d is c > 1.15 / 2.15 = 0.535."""
    subject, _ = gate()
    fill(subject, 4, continued)
    assert subject.permits(4, candidates(40)) is permitted


def test_a_slow_first_stage_needs_a_higher_rate() -> None:
    fast, slow = gate()[0], gate()[0]
    fill(fast, 4, continued=6)
    for number in range(NEEDED):
        slow.verified(4, number < 6, 100.0, 25.0)
    assert fast.permits(4, candidates(40))
    assert not slow.permits(4, candidates(40))


def test_only_the_last_windows_count() -> None:
    subject, _ = gate()
    fill(subject, 4, continued=0, count=100)
    fill(subject, 4, continued=REMEMBERED, count=REMEMBERED)
    assert subject.permits(4, candidates(40))


def test_a_long_match_opens_the_gate_before_anything_was_observed() -> None:
    """C12: copyable text must get going."""
    subject, counters = gate()
    assert subject.permits(4, candidates(40, matched=30))
    assert not subject.permits(4, candidates(40, matched=3))
    assert (counters.permits, counters.suppressed) == (1, 1)


def test_neighbouring_widths_stand_in_for_one_without_observations() -> None:
    subject, _ = gate()
    fill(subject, 5, continued=NEEDED)
    assert subject.permits(4, candidates(40, matched=3))
    assert not subject.permits(12, candidates(40, matched=3))


def test_windows_that_nothing_could_follow_say_nothing() -> None:
    subject, _ = gate()
    for _ in range(NEEDED):
        subject.verified(4, None, 5.0, 25.0)
    assert not subject.permits(4, candidates(40, matched=3))


def test_a_short_proposal_is_not_pipelined() -> None:
    policy = FixedPolicy(SpeculationPlan(window_policy="fixed"), gate()[0])
    assert policy.choose(offer(2, matched=40, depth=4)).depth == 1
    assert policy.choose(offer(3, matched=40, depth=4))[:2] == (1, 4)
    assert policy.choose(offer(40, matched=40, depth=4))[:2] == (16, 4)
    assert policy.choose(offer(40, matched=40, depth=1))[:2] == (16, 1)
