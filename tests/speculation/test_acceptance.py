"""Estimates of how likely candidates are to be right."""

from __future__ import annotations

import pytest

from engine.speculation.acceptance import CERTAIN, Acceptance, Rate
from engine.speculation.stream import Candidate


def test_a_rate_goes_from_its_prior_to_what_was_seen() -> None:
    rate = Rate(0.5, weight=4.0)
    assert rate.mean == 0.5
    for _ in range(200):
        rate.observe(True)
    assert rate.mean == pytest.approx(CERTAIN, abs=0.02)


def test_old_observations_fade() -> None:
    rate = Rate(0.5, weight=4.0)
    for success in [True] * 500 + [False] * 200:
        rate.observe(success)
    assert rate.mean < 0.1


def test_what_is_not_observed_is_held_less_firmly() -> None:
    rate = Rate(0.5, weight=4.0)
    for success in [True, False, False] * 20:
        rate.observe(success)
    mean, hopeful = rate.mean, rate.hopeful(1.0)
    for _ in range(200):
        rate.forget()
    assert rate.mean == mean
    assert rate.hopeful(1.0) > hopeful


def test_longer_matches_are_trusted_more() -> None:
    acceptance = Acceptance()
    means = [acceptance.rate(Candidate(0, "ngram", length)).mean for length in range(80)]
    assert means == sorted(means)
    assert means[3] < 0.5 < 0.9 < means[30]


def test_lengths_are_judged_apart() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(Candidate(0, "ngram", 20), right=False)
    assert acceptance.rate(Candidate(0, "ngram", 20)).mean < 0.2
    assert acceptance.rate(Candidate(0, "ngram", 30)).mean > 0.9


def test_depths_are_judged_apart_and_the_deepest_together() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(Candidate(0, "mtp", 0), right=True)
        acceptance.observe(Candidate(0, "mtp", 1), right=False)
    assert acceptance.at_depth(0).mean > 0.85
    assert acceptance.at_depth(1).mean < 0.2
    assert acceptance.at_depth(9) is acceptance.at_depth(50)


def test_a_depth_not_seen_yet_is_like_the_one_before_it() -> None:
    acceptance = Acceptance()
    before = acceptance.at_depth(2).mean
    for _ in range(50):
        acceptance.observe(Candidate(0, "mtp", 0), right=True)
    assert acceptance.at_depth(2).mean > before + 0.2
    assert acceptance.at_depth(2).mean < acceptance.at_depth(1).mean < acceptance.at_depth(0).mean


def test_a_confidence_decides_where_there_is_one() -> None:
    acceptance = Acceptance()
    sure, unsure = Candidate(0, "mtp", 0, 0.99), Candidate(0, "mtp", 0, 0.1)
    for _ in range(50):
        acceptance.observe(sure, right=True)
        acceptance.observe(unsure, right=False)
    assert acceptance.rate(sure).mean > 0.9
    assert acceptance.rate(unsure).mean < 0.1
    assert 0.3 < acceptance.at_depth(0).mean < 0.7  # the depth knows both


def test_survivals_multiply() -> None:
    acceptance = Acceptance()
    candidates = [Candidate(0, "mtp", 0), Candidate(0, "mtp", 1)]
    first, second = acceptance.at_depth(0).mean, acceptance.at_depth(1).mean
    assert acceptance.survivals(candidates) == pytest.approx([first, first * second])
