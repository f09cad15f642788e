"""Windows under way: order, stale ones, occupancy."""

from __future__ import annotations

import pytest

from engine.config.plan import SpeculationPlan
from engine.speculation.pipeline import Pipeline
from engine.speculation.statistics import Statistics
from engine.speculation.stream import Candidate, Stream, spans
from engine.speculation.types import WindowPlan
from tests.speculation.driving import answer, scripted


def pipeline() -> tuple[Pipeline, Statistics]:
    statistics = Statistics()
    subject = Pipeline(0, 0, statistics)
    subject.start_clock(0.0)
    subject.begin_epoch()
    return subject, statistics


def send(subject: Pipeline, start: int = 0, now: float = 0.0) -> WindowPlan:
    return subject.send(start, (1,), (), now, draft_budget=0, reason="", probe=False)


def test_windows_of_a_dropped_epoch_are_stale_and_those_of_the_next_are_not() -> None:
    subject, _ = pipeline()
    old = send(subject)
    assert subject.drop_epoch() == old.epoch
    subject.begin_epoch()
    new = send(subject)
    assert new.epoch > old.epoch
    assert subject.take(answer(old, [], stale=True)).stale
    assert not subject.take(answer(new, [5])).stale


def test_there_is_nothing_to_cancel_when_nothing_is_left() -> None:
    subject, _ = pipeline()
    subject.take(answer(send(subject), [5]))
    assert subject.drop_epoch() is None


def test_a_stale_window_may_come_back_computed() -> None:
    """The cancel came too late for it."""
    subject, _ = pipeline()
    window = send(subject)
    subject.drop_epoch()
    assert subject.take(answer(window, [5])).stale


def test_occupancy_is_the_share_of_the_allowed_depth_over_time() -> None:
    subject, statistics = pipeline()
    first = send(subject)
    subject.advance_clock(10.0)  # no stream yet: does not count
    subject.feed(2)
    second = send(subject, now=10.0)
    subject.advance_clock(13.0)  # two of two
    subject.take(answer(first, [5]))
    subject.advance_clock(14.0)  # one of two
    subject.take(answer(second, [5]))
    subject.feed(0)
    subject.advance_clock(20.0)
    counters = statistics.pipeline
    assert counters.occupancy == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    assert counters.in_flight_mean == pytest.approx((10 * 1 + 3 * 2 + 1 * 1) / 20)
    assert counters.in_flight_max == 2


def test_the_clock_never_runs_backwards() -> None:
    subject, statistics = pipeline()
    subject.advance_clock(5.0)
    subject.advance_clock(4.0)
    assert statistics.pipeline.seconds == 5.0


def test_the_depth_counts_stale_windows_too() -> None:
    """A new epoch starts behind the stale work, without ever exceeding the depth."""
    prompt = [*range(1, 40), 99, *range(1, 9)]
    continuation = [*range(9, 30), 77, *range(31, 40)]
    plan = SpeculationPlan(strategy="ngram-suffix", window_policy="fixed", window_max=2, pipeline_depth=4)
    simulation = scripted(prompt, continuation, plan, rtt_ms=60)
    result = simulation.run()
    stale = [outcome for outcome in result.outcomes if outcome.stale]
    assert len(stale) == simulation.loop.statistics.pipeline.stale_windows >= 3
    assert max(window.in_flight for window in result.plans) == 4
    assert all(outcome.accepted == 0 for outcome in stale)
    recovery = next(
        window for window in result.plans if window.epoch > result.plans[0].epoch and window.in_flight > 1
    )
    assert recovery.in_flight <= 4


def test_a_rejected_window_costs_one_loop() -> None:
    """The window after a rejection leaves at once, behind stale ones that are skipped where not begun."""
    prompt = [*range(1, 60), 99, *range(1, 20)]
    right = list(range(20, 50))
    plan = SpeculationPlan(strategy="ngram-suffix", window_policy="fixed", window_max=2, pipeline_depth=4)
    whole = scripted(prompt, right, plan, rtt_ms=60).run().elapsed_ms
    broken = scripted(prompt, [*right[:20], 7777, *right[21:]], plan, rtt_ms=60).run()
    loops = [outcome.elapsed_ms for outcome in broken.outcomes if not outcome.stale]
    assert broken.elapsed_ms - whole < 5 * max(loops)  # one loop for it, and three plain ones to match again


def test_a_stream_moves_on_and_is_cleared() -> None:
    stream = Stream()
    stream.extend(Candidate(token, "ngram", 3) for token in range(5))
    assert [candidate.token for candidate in stream.take(2)] == [0, 1]
    assert (stream.sent, stream.unsent, len(stream)) == (2, 3, 5)
    stream.advance()
    assert (stream.sent, stream.unsent) == (1, 3)
    assert stream.pending() == [1, 2, 3, 4]
    assert [candidate.token for candidate in stream.ahead(2)] == [1, 2]
    last = stream.last()
    assert last is not None
    assert last.token == 4
    stream.clear()
    assert (stream.first(), stream.last(), len(stream), stream.sent) == (None, None, 0, 0)


def test_an_unsent_candidate_that_the_target_confirmed_is_used_up() -> None:
    stream = Stream()
    stream.extend([Candidate(1, "ngram", 3), Candidate(2, "ngram", 4)])
    stream.advance()
    assert (stream.sent, stream.pending()) == (0, [2])


def test_spans_are_runs_of_a_source() -> None:
    candidates = [Candidate(0, source, 0) for source in ("mtp", "mtp", "ngram", "mtp")]
    assert spans(candidates) == (("mtp", 2), ("ngram", 1), ("mtp", 1))
    assert spans([]) == ()
