"""What speculation is worth in simulated time, on the measured costs of the default model.

The simulation is deterministic, so these are statements about the policy and not about this machine.
"""

from __future__ import annotations

from statistics import mean

import pytest

from engine.config.plan import WINDOW_POLICIES
from engine.speculation.costs import CostModel
from engine.speculation.goodput import EXPLORE
from tests.speculation.workloads import copy, novel, rename, simulate, speedup

SEEDS = range(4)


@pytest.mark.parametrize("rtt_ms", [0, 5, 20, 100])
@pytest.mark.parametrize("acceptance", [0.3, 0.63])
def test_text_that_cannot_be_copied_is_never_much_slower(rtt_ms: float, acceptance: float) -> None:
    assert min(speedup(novel(s), rtt_ms, "auto", seed=s, acceptance=acceptance) for s in SEEDS) >= 0.97


@pytest.mark.parametrize("rtt_ms", [0, 5, 20, 100])
def test_text_without_a_head_or_a_copy_is_decoded_plainly(rtt_ms: float) -> None:
    assert speedup(novel(0), rtt_ms, "auto", acceptance=None) == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize(
    ("rtt_ms", "behind", "least"),
    [(20, False, 1.1), (100, False, 1.6), (0, True, 1.25), (20, True, 1.6), (100, True, 1.85)],
)
def test_mtp_pays(rtt_ms: float, behind: bool, least: float) -> None:
    """In replies only over a network; behind them on other machines' time, so always."""
    assert mean(speedup(novel(s), rtt_ms, "mtp", seed=s, behind=behind) for s in range(10)) >= least


def test_a_better_head_pays_more() -> None:
    assert mean(speedup(novel(s), 20, "mtp", seed=s, acceptance=0.84, behind=False) for s in SEEDS) >= 1.2
    assert mean(speedup(novel(s), 20, "mtp", seed=s, acceptance=0.84) for s in SEEDS) >= 1.9


@pytest.mark.parametrize("rtt_ms", [0, 5, 20, 100])
def test_a_poor_head_pays_behind_replies(rtt_ms: float) -> None:
    assert min(speedup(novel(s), rtt_ms, "mtp", seed=s, acceptance=0.2) for s in SEEDS) >= 1.05


@pytest.mark.parametrize(
    ("rtt_ms", "behind", "shortest", "longest"),
    [(0, False, 0, 0), (20, False, 1, 2), (100, False, 3, 4), (0, True, 2, 2), (20, True, 3, 4)],
)
def test_deeper_drafts_are_asked_for_where_they_pay(
    rtt_ms: float, behind: bool, shortest: int, longest: int
) -> None:
    result = simulate(novel(1), rtt_ms, "mtp", behind=behind)
    budgets = sorted(window.draft_budget for window in result.plans)
    assert shortest <= budgets[len(budgets) // 2] <= longest


@pytest.mark.parametrize("strategy", ["ngram-simple", "ngram-suffix", "auto"])
def test_copies_are_fast_and_keep_the_pipeline_full(strategy: str) -> None:
    for seed in SEEDS:
        result = simulate(copy(seed), 20, strategy, seed=seed)
        plain = simulate(copy(seed), 20, "disabled", seed=seed)
        assert plain.elapsed_ms / result.elapsed_ms >= 4.0
        assert result.loop.statistics.pipeline.occupancy >= 0.95


@pytest.mark.parametrize("strategy", ["ngram-suffix", "auto"])
def test_edited_copies_are_fast(strategy: str) -> None:
    assert min(speedup(rename(s), 20, strategy, seed=s) for s in SEEDS) >= 2.0


def test_copies_pay_even_without_a_network() -> None:
    assert min(speedup(copy(s), 0, "auto", seed=s) for s in SEEDS) >= 1.5


@pytest.mark.parametrize("policy", WINDOW_POLICIES)
@pytest.mark.parametrize("strategy", ["ngram-simple", "ngram-cache", "ngram-suffix"])
def test_copyable_text_gets_several_windows_under_way(policy: str, strategy: str) -> None:
    """C12: a 30 ms link, depth 4; on average more than one of the first ten windows is under way."""
    result = simulate(copy(0), 30, strategy, window_policy=policy)
    first = result.plans[:10]
    assert mean(window.in_flight for window in first) > 1
    assert max(window.in_flight for window in first) >= 3
    assert result.loop.statistics.to_json()["pipeline"]["occupancy"] > 0.9


@pytest.mark.parametrize("strategy", ["ngram-suffix", "auto"])
def test_windows_keep_their_shape_where_a_change_is_dear(strategy: str) -> None:
    """As on a GPU, but more so: a stage takes four tokens' time for a window of other rows than the last."""
    for seed in SEEDS:
        plain = simulate(rename(seed), 0, "disabled", seed=seed, switch_ms=40.0)
        result = simulate(rename(seed), 0, strategy, seed=seed, switch_ms=40.0)
        assert plain.elapsed_ms / result.elapsed_ms >= 0.8


def test_stages_that_share_a_device_are_seen_to_slow_each_other_down() -> None:
    """As two stages on one GPU do: what a stage takes alone is not what it takes in a stream."""
    for seed in SEEDS:
        for text, least in ((rename(seed), 0.97), (copy(seed), 1.4), (novel(seed), 0.97)):
            plain = simulate(text, 0, "disabled", seed=seed, one_device=True)
            result = simulate(text, 0, "auto", seed=seed, one_device=True)
            assert plain.elapsed_ms / result.elapsed_ms >= least


def test_what_was_learnt_of_the_machines_serves_the_next_request() -> None:
    costs = CostModel()
    first = simulate(copy(0), 20, "ngram-suffix", costs=costs)
    again = simulate(copy(0), 20, "ngram-suffix", costs=costs)
    assert again.elapsed_ms < first.elapsed_ms


def test_exploring_costs_about_a_hundredth() -> None:
    """Where drafts are useless, what they cost is what it takes to see it."""
    plain = simulate(novel(2), 20, "disabled")
    for behind in (False, True):
        result = simulate(novel(2), 20, "mtp", acceptance=0.0, behind=behind)
        statistics = result.loop.statistics
        assert statistics.probes + statistics.proposed > 0
        assert result.elapsed_ms < plain.elapsed_ms * (1 + 2 * EXPLORE)


@pytest.mark.parametrize("dear", ["drafts", "drafts under way", "windows beside drafts"])
def test_a_spell_in_which_drafts_were_dear_is_forgotten(dear: str) -> None:
    """Something else had the machines; the answers after it are as fast as ever."""
    costs = CostModel()
    before = simulate(novel(1), 0, "mtp", costs=costs).elapsed_ms
    for _ in range(8):
        if dear == "drafts":
            costs.observe_drafting(1, 30.0, 1)
        elif dear == "drafts under way":
            costs.observe_lag(1, 40.0)
        else:
            costs.observe_beside_drafts(1, 60.0)
            costs.observe_beside_drafts(2, 60.0)
    assert simulate(novel(1), 0, "mtp", costs=costs).elapsed_ms <= 1.05 * before
