"""Faults reported from neighbouring systems that concern the loop as a whole."""

from __future__ import annotations

import pytest

from engine.config.plan import WINDOW_POLICIES, SpeculationPlan
from tests.speculation.driving import scripted
from tests.speculation.simulator import Result

NGRAMS = ("ngram-simple", "ngram-cache", "ngram-suffix", "auto")


def drafted_tokens(result: Result) -> set[int]:
    """Every token that was sent as a draft."""
    return {token for plan in result.plans for token in plan.tokens[len(plan.tokens) - plan.width :]}


@pytest.mark.parametrize("policy", WINDOW_POLICIES)
@pytest.mark.parametrize("strategy", NGRAMS)
def test_requests_do_not_learn_from_each_other(strategy: str, policy: str) -> None:
    """C2: request A, an unrelated request B, and A again."""
    plan = SpeculationPlan(strategy=strategy, window_policy=policy)
    counting = list(range(1, 11)) * 50
    unrelated = [token for number in range(40) for token in (100, 101, 102, 200 + number)]
    first = scripted(counting[:100], counting[100:200], plan).run()
    other = scripted(unrelated[:60], unrelated[60:], plan).run()
    again = scripted(counting[:100], counting[100:200], plan).run()
    assert first.loop.statistics.accepted > 50
    assert drafted_tokens(other) <= set(unrelated)
    assert again.loop.statistics.to_json() == first.loop.statistics.to_json()


@pytest.mark.parametrize("policy", WINDOW_POLICIES)
@pytest.mark.parametrize("strategy", NGRAMS)
@pytest.mark.parametrize("said", [[5] * 32, [5] * 9 + [6] + [5] * 22, [7, 5, 5, 8] * 8, [*range(10, 42)]])
def test_a_prompt_of_one_word_is_answered_as_without_drafts(
    strategy: str, policy: str, said: list[int]
) -> None:
    """C4: one token 48 times, and whatever the model makes of it."""
    plan = SpeculationPlan(strategy=strategy, window_policy=policy)
    result = scripted([5] * 48, said, plan).run()
    assert result.tokens == said
    assert result.loop.statistics.violations() == []


@pytest.mark.parametrize("depth", [1, 9, 64])
def test_a_deep_pipeline_keeps_every_row_that_is_right(depth: int) -> None:
    """B14: no depth outlives what stages remember, because they remember nothing but their cache."""
    prompt = [*range(1, 200), 999, *range(1, 20)]
    said = [*range(20, 120), 777, *range(121, 199)]
    plan = SpeculationPlan(strategy="ngram-suffix", window_policy="fixed", window_max=2, pipeline_depth=depth)
    result = scripted(prompt, said, plan, rtt_ms=200, stages=3).run()
    assert result.tokens == said
    assert max(window.in_flight for window in result.plans) <= depth
