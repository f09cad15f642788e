"""What the default policy chooses when costs and chances are known."""

from __future__ import annotations

import pytest

from engine.protocol.messages import StageTime
from engine.speculation.acceptance import Acceptance
from engine.speculation.costs import CostModel
from engine.speculation.goodput import EXPLORE, GoodputPolicy
from engine.speculation.policies import DraftNeed, Offer, Verified
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate
from tests.speculation.workloads import ROWS, measured_cost

CERTAIN = [Candidate(token, "ngram", 64) for token in range(48)]
DOUBTFUL = [Candidate(token, "ngram", 0) for token in range(6)]


def learn(costs: CostModel, rows: int, stage_ms: list[float], rtt_ms: float) -> None:
    times = tuple(StageTime(stage, 0, round(ms * 1000)) for stage, ms in enumerate(stage_ms))
    costs.observe_window(rows, times, sum(stage_ms) + rtt_ms)


def measured(rtt_ms: float, stages: int = 2) -> CostModel:
    """The default model on one core a stage, every number of rows measured; drafts cost 2.4 ms each."""
    costs, cost = CostModel(), measured_cost(stages)
    for rows in ROWS:
        learn(costs, rows, [cost(rows)] * stages, rtt_ms)
    costs.observe_drafting(1, 2.4, skipped=1)
    return costs


def policy(costs: CostModel, *, draft_max: int = 0, mtp: float = 0.63) -> tuple[GoodputPolicy, Statistics]:
    """The policy when MTP drafts of any depth have been right with this chance."""
    acceptance, counters = Acceptance(), Statistics()
    for number in range(400):
        for depth in range(4):
            acceptance.observe(Candidate(0, "mtp", depth), right=(number * 0.618) % 1 < mtp)
    return GoodputPolicy(acceptance, costs, counters, draft_max=draft_max), counters


def offer(candidates: list[Candidate], *, depth: int = 4, sent: int = 0, refillable: bool = True) -> Offer:
    return Offer(candidates, sent, refillable, width_limit=15, depth_limit=depth)


def need(
    fresh: float, limit: int, *, streaming: bool = False, skipped: int = 0, remaining: int = 200
) -> DraftNeed:
    return DraftNeed(fresh, limit, streaming, skipped, remaining)


def seconds_passed(counters: Statistics, seconds: float) -> None:
    counters.pipeline.seconds = seconds


def test_nothing_is_drafted_before_anything_was_measured() -> None:
    subject, _ = policy(CostModel(), draft_max=4)
    assert subject.choose(offer(CERTAIN)).width == 0
    assert subject.draft_budget(need(1.0, 10)) == 0


def test_nothing_to_choose_from_is_a_plain_step() -> None:
    subject, _ = policy(measured(20))
    assert subject.choose(offer([])).width == 0


@pytest.mark.parametrize(("rtt_ms", "budgets"), [(0, {0}), (20, {1, 2}), (50, {2, 3}), (100, {3, 4})])
def test_drafts_are_longer_the_farther_the_stages_are(rtt_ms: float, budgets: set[int]) -> None:
    """Two rows cost twice one on this CPU, so at no distance drafts do not pay."""
    subject, _ = policy(measured(rtt_ms), draft_max=4)
    assert subject.draft_budget(need(1.0, 10)) in budgets


def test_a_draft_is_weighed_by_the_chance_to_need_it() -> None:
    subject, _ = policy(measured(100), draft_max=4)
    budgets = [subject.draft_budget(need(fresh, 10)) for fresh in (1.0, 0.5, 0.05, 0.0)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] >= 3
    assert budgets[-1] == 0


def test_a_stream_makes_drafts_dearer() -> None:
    """They take time of the last stage, of which a stream makes more."""
    subject, _ = policy(measured(100), draft_max=4)
    subject.choose(offer(CERTAIN))
    alone, in_stream = (
        subject.draft_budget(need(0.3, 10, streaming=streaming)) for streaming in (False, True)
    )
    assert alone > in_stream


def test_a_budget_never_exceeds_what_is_left() -> None:
    subject, _ = policy(measured(100), draft_max=4)
    assert subject.draft_budget(need(1.0, 1)) == 1


def test_certain_text_is_streamed() -> None:
    choice = policy(measured(20))[0].choose(offer(CERTAIN))
    assert choice.depth >= 3
    assert choice.width >= 4


def test_certain_text_goes_in_wide_windows_where_only_one_may_be_under_way() -> None:
    choice = policy(measured(20))[0].choose(offer(CERTAIN, depth=1))
    assert (choice.depth, choice.width >= 12) == (1, True)


def test_one_stage_without_a_network_gains_nothing_from_depth() -> None:
    assert policy(measured(0, stages=1))[0].choose(offer(CERTAIN)).depth <= 2


@pytest.mark.parametrize("rtt_ms", [0, 20])
def test_doubtful_text_is_decoded_plainly(rtt_ms: float) -> None:
    assert policy(measured(rtt_ms))[0].choose(offer(DOUBTFUL)).width == 0


def test_what_is_too_doubtful_here_may_pay_farther_away() -> None:
    assert policy(measured(300))[0].choose(offer(DOUBTFUL)).width > 0


def test_rows_that_cost_nothing_are_all_used() -> None:
    """A GPU: wide windows cost what narrow ones do."""
    costs = CostModel()
    for rows in ROWS:
        learn(costs, rows, [10.0, 10.0], 1.0)
    choice = policy(costs)[0].choose(offer([Candidate(0, "ngram", 10)] * 15, depth=1, refillable=False))
    assert choice.width == 15


def test_a_stream_under_way_is_not_fed_with_what_has_become_doubtful() -> None:
    subject, _ = policy(measured(20))
    assert subject.choose(offer(CERTAIN, sent=8)).depth > 1
    assert subject.choose(offer(DOUBTFUL, sent=2)).depth == 1


def test_permits_are_counted() -> None:
    subject, counters = policy(measured(20))
    subject.choose(offer(CERTAIN))
    subject.choose(offer(DOUBTFUL))
    assert (counters.pipeline.permits, counters.pipeline.suppressed) == (1, 1)


# Exploring


def single_rows(rtt_ms: float) -> CostModel:
    costs = CostModel()
    learn(costs, 1, [5.4, 5.4], rtt_ms)
    return costs


def test_the_cost_of_a_second_row_is_found_out_with_a_likely_draft() -> None:
    """Until then it is expected to be nearly that of the first; if it is less, speculation pays."""
    subject, counters = policy(single_rows(0))
    seconds_passed(counters, 2.0)
    choice = subject.choose(offer([Candidate(0, "mtp", 0, 0.6)], refillable=False))
    assert (choice.width, choice.probe, counters.probes) == (1, True, 1)


def test_a_probe_is_charged_and_the_next_one_has_to_wait() -> None:
    subject, counters = policy(single_rows(0))
    seconds_passed(counters, 2.0)
    unlikely = offer([Candidate(0, "ngram", 0)], refillable=False)
    assert subject.choose(unlikely).probe
    subject.verified(Verified(1, 0, 1, True, None, 50.0, 5.0, 45.0, probe=True))
    assert not subject.choose(unlikely).probe  # 39 ms were lost, of 2 s
    seconds_passed(counters, 10.0)
    assert subject.choose(unlikely).probe


@pytest.mark.parametrize(
    ("skipped", "remaining", "asks"), [(0, 200, True), (1000, 200, False), (1000, 5, False)]
)
def test_drafting_is_not_begun_where_catching_up_costs_more(skipped: int, remaining: int, asks: bool) -> None:
    """At 20 ms a draft saves 4 ms a token; a prompt of 1,000 tokens takes the head some 200 ms."""
    subject, _ = policy(measured(20), draft_max=4)
    assert bool(subject.draft_budget(need(1.0, 10, skipped=skipped, remaining=remaining))) == asks


def test_an_answer_that_goes_on_is_worth_catching_up_for() -> None:
    subject, counters = policy(measured(20), draft_max=4)
    counters.emitted = 150
    assert subject.draft_budget(need(1.0, 10, skipped=1000, remaining=300)) > 0


def test_drafts_are_tried_where_they_would_pay_if_they_were_good() -> None:
    hopeless, promising = (
        policy(measured(0), draft_max=4, mtp=0.1)[0],
        policy(measured(20), draft_max=4, mtp=0.3),
    )
    assert hopeless.draft_budget(need(1.0, 10)) == 0
    subject, counters = promising
    for _ in range(300):  # long ago: it is not so sure any more
        subject.draft_budget(need(1.0, 10))
        counters.pipeline.seconds += 0.031
    assert counters.probes > 1  # whatever became of the first
    spent_ms = counters.probes * 2.4
    assert spent_ms < EXPLORE * (counters.pipeline.seconds * 1000 + 64 * 31) + 4 * 2.4


def gpu(switch_ms: float, *, last_rows: int) -> CostModel:
    """Two stages: 1 ms, 0.2 ms for each further row, half of `switch_ms` for other rows; drafts of 0.3 ms."""
    costs = CostModel()
    for rows in (1, 2, 3, 4, last_rows):
        stage_ms = [0.8 + 0.2 * rows] * 2
        learn(costs, rows, [ms + switch_ms / 2 for ms in stage_ms], 1.0)
        learn(costs, rows, stage_ms, 1.0)
    learn(costs, last_rows + 1, [0.8 + 0.2 * (last_rows + 1) + switch_ms / 2] * 2, 1.0)
    learn(costs, last_rows, [0.8 + 0.2 * last_rows + switch_ms / 2] * 2, 1.0)
    costs.observe_drafting(1, 0.3, skipped=1)
    return costs


def test_a_window_of_other_rows_has_to_be_worth_the_change() -> None:
    """Where a stage needs 4 ms to change, a short guess is not worth two changes; a long copy is."""
    guess, copy = [Candidate(1, "ngram", 6)], CERTAIN
    cheap, _ = policy(gpu(0.0, last_rows=1))
    assert cheap.choose(offer(guess)).width == 1
    dear, _ = policy(gpu(4.0, last_rows=1))
    assert dear.choose(offer(guess)).width == 0
    assert dear.choose(offer(copy)).width > 4


def test_decoding_with_drafts_keeps_its_shape() -> None:
    """A draft of which only the first token looks good is sent whole, not in a window of other rows."""
    draft = [Candidate(1, "mtp", 0, 0.9), Candidate(2, "mtp", 1, 0.0), Candidate(3, "mtp", 2, 0.0)]
    for switch_ms, width in ((0.0, 1), (4.0, 3)):
        subject, _ = policy(gpu(switch_ms, last_rows=4), draft_max=3, mtp=0.9)
        assert subject.draft_budget(need(1.0, 3)) == 3
        assert subject.choose(offer(draft, refillable=False)).width == width


def test_a_small_gain_is_not_worth_another_way_of_decoding() -> None:
    draft = [Candidate(1, "mtp", 0)]
    for switch_ms, width in ((0.0, 1), (40.0, 0)):
        subject, _ = policy(gpu(switch_ms, last_rows=1), draft_max=1, mtp=0.6)
        assert subject.choose(offer(draft, refillable=False)).width == width
