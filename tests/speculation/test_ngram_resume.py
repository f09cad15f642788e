"""Copies that go on behind an edit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config.plan import SpeculationPlan
from engine.speculation.ngram_resume import LONGEST_EDIT, PROPOSED, NgramResume
from engine.speculation.ngram_suffix import NgramSuffix
from tests.speculation.driving import scripted

SOURCE = list(range(1, 40))


def started(history: list[int]) -> NgramResume:
    """A proposer over a text that has just begun to repeat `SOURCE` and has copied from it once."""
    history.extend([*SOURCE, 99, 1, 2, 3])
    lookup = NgramSuffix(history, shortest=3, longest=32, max_proposal=48)
    proposer = NgramResume(history, lookup)
    assert tokens(proposer)[:3] == [4, 5, 6]
    return proposer


def tokens(proposer: NgramResume, budget: int = 20) -> list[int]:
    return [candidate.token for candidate in proposer.propose([], budget)]


def test_a_replaced_token_is_stepped_over() -> None:
    history: list[int] = []
    proposer = started(history)
    history.extend([4, 5, 77])  # in place of 6
    assert tokens(proposer) == list(range(7, 7 + PROPOSED))
    assert [candidate.evidence for candidate in proposer.propose([], 3)] == [0, 1, 2]


def test_a_token_that_was_left_out_is_found_behind() -> None:
    history: list[int] = []
    proposer = started(history)
    history.extend([4, 5, 8])  # 6 and 7 are missing
    assert tokens(proposer, 3) == [9, 10, 11]


def test_added_tokens_are_waited_out() -> None:
    history: list[int] = []
    proposer = started(history)
    history.extend([4, 5, 77, 78])
    assert tokens(proposer, 3) == []  # the edit is longer than one token: nothing is known yet
    history.append(6)
    candidates = proposer.propose([], 3)
    assert [candidate.token for candidate in candidates] == [7, 8, 9]
    assert candidates[0].evidence == 1  # one token agrees since the edit


def test_a_long_edit_is_given_up() -> None:
    history: list[int] = []
    proposer = started(history)
    history.extend([4, 5, *range(100, 100 + LONGEST_EDIT), 6])
    assert tokens(proposer) == []


def test_a_second_edit_is_measured_from_the_resumed_copy() -> None:
    history: list[int] = []
    proposer = started(history)
    history.append(77)  # in place of 4
    assert tokens(proposer, 2) == [5, 6]
    history.extend([5, 78])  # and then in place of 6
    assert tokens(proposer, 2) == [7, 8]


def test_an_edit_before_the_refilled_part_of_a_copy_is_found() -> None:
    history: list[int] = []
    proposer = started(history)
    proposer.propose([4, 5, 6, 7, 8, 9], 5)  # a refill behind drafts of which only some are right
    history.extend([4, 5, 77])
    assert tokens(proposer, 3) == [7, 8, 9]


def test_nothing_is_resumed_behind_a_pending_suffix() -> None:
    history: list[int] = []
    proposer = started(history)
    history.extend([4, 5, 77])
    assert proposer.propose([50], 5) == []


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 20))
def test_it_never_reads_beyond_the_text(text: list[int], budget: int) -> None:
    history: list[int] = []
    proposer = NgramResume(history, NgramSuffix(history, shortest=3, longest=32, max_proposal=48))
    for token in text:
        history.append(token)
        assert len(proposer.propose([], budget)) <= budget


def test_auto_needs_fewer_windows_for_an_edited_copy() -> None:
    """Every eighth token of the copy is another one."""
    source = [number % 7 + 100 * (number // 7) for number in range(200)]
    edited = [5000 + number if number % 8 == 7 else token for number, token in enumerate(source)]
    windows = {}
    for strategy in ("ngram-suffix", "auto"):
        plan = SpeculationPlan(strategy=strategy, window_policy="fixed", pipeline_depth=1)
        simulation = scripted([*source, 9999], edited, plan)
        assert simulation.run().tokens == edited
        windows[strategy] = simulation.loop.statistics.windows
    assert windows["auto"] < 0.7 * windows["ngram-suffix"]
