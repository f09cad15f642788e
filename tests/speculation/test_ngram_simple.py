"""Prompt lookup against a scan of the text, as llama.cpp does it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram_simple import NgramSimple

texts = st.lists(st.integers(0, 3), max_size=60)


def scan(text: list[int], size: int) -> int | None:
    """Position after the newest earlier occurrence of the last `size` tokens."""
    pattern = text[-size:]
    for start in range(len(text) - size - 1, -1, -1):
        if text[start : start + size] == pattern:
            return start + size
    return None


def tokens(proposer: NgramSimple, pending: list[int], budget: int) -> list[int]:
    return [candidate.token for candidate in proposer.propose(pending, budget)]


@given(text=texts, size=st.integers(1, 4), budget=st.integers(1, 30))
def test_it_copies_what_followed_the_newest_occurrence(text: list[int], size: int, budget: int) -> None:
    found = scan(text, size) if len(text) > size else None
    expected: list[int] = []
    if found is not None:
        source = text.copy()
        for ahead in range(budget):
            source.append(source[found + ahead])
        expected = source[len(text) :]
    assert tokens(NgramSimple(text, size=size, max_proposal=64), [], budget) == expected


@given(text=texts, size=st.integers(1, 4), cut=st.integers(0, 60))
def test_an_index_that_grew_equals_one_made_at_once(text: list[int], size: int, cut: int) -> None:
    growing = text[:cut]
    proposer = NgramSimple(growing, size=size, max_proposal=64)
    for token in text[cut:]:
        growing.append(token)
        proposer.observe()
    assert proposer.propose([], 20) == NgramSimple(text, size=size, max_proposal=64).propose([], 20)


@given(text=texts, pending=texts, size=st.integers(1, 4))
def test_drafting_behind_a_pending_suffix_leaves_no_trace(
    text: list[int], pending: list[int], size: int
) -> None:
    proposer = NgramSimple(text, size=size, max_proposal=64)
    before = proposer.propose([], 20)
    proposer.propose(pending, 20)
    assert proposer.propose([], 20) == before


def test_a_pending_suffix_is_followed() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 9, 1, 2]
    assert tokens(NgramSimple(text, size=3, max_proposal=64), [3, 4], 2) == [5, 6]


def test_the_newest_occurrence_wins_over_a_longer_match() -> None:
    text = [7, 1, 2, 50, 8, 1, 2, 60, 7, 1, 2]
    assert tokens(NgramSimple(text, size=2, max_proposal=64), [], 1) == [60]


def test_evidence_is_the_matched_length_and_grows() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]
    candidates = NgramSimple(text, size=2, max_proposal=64).propose([], 3)
    assert [candidate.evidence for candidate in candidates] == [4, 5, 6]


def test_a_proposal_is_bounded_by_the_settings() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert tokens(NgramSimple(text, size=2, max_proposal=3), [], 20) == [3, 4, 5]


def test_a_text_shorter_than_the_pattern_has_no_proposal() -> None:
    assert tokens(NgramSimple([1], size=3, max_proposal=64), [], 5) == []
