"""Suffix lookup against a search for the longest match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.ngram_suffix import MOST_EXAMINED, NgramSuffix

texts = st.lists(st.integers(0, 2), max_size=50)  # at most 50: every occurrence is examined


def longest_match(text: list[int], tail: list[int], longest: int) -> tuple[int, int]:
    """(length, position after) of the longest match of the end of `tail`, the newest among equals."""
    best = (0, 0)
    for end in range(1, len(text)):
        length = 0
        while length < min(longest, end, len(tail)) and text[end - length - 1] == tail[-length - 1]:
            length += 1
        best = max(best, (length, end))
    return best


def suffix(text: list[int], shortest: int = 3, longest: int = 16, max_proposal: int = 64) -> NgramSuffix:
    return NgramSuffix(text, shortest=shortest, longest=longest, max_proposal=max_proposal)


@given(text=texts, pending=st.lists(st.integers(0, 2), max_size=10), shortest=st.integers(3, 6))
def test_it_copies_behind_the_longest_match(text: list[int], pending: list[int], shortest: int) -> None:
    length, end = longest_match(text, text + pending, longest=16)
    candidates = suffix(text, shortest).propose(pending, 40)
    if length < shortest:
        assert candidates == []
        return
    source = text + pending
    for ahead in range(len(candidates)):
        source.append(source[end + ahead])
    assert [candidate.token for candidate in candidates] == source[len(text) + len(pending) :]
    assert [candidate.evidence for candidate in candidates] == list(range(length, length + len(candidates)))
    assert len(candidates) == min(40, max(4, 2 * length))


@given(text=texts, cut=st.integers(0, 50))
def test_an_index_that_grew_equals_one_made_at_once(text: list[int], cut: int) -> None:
    growing = text[:cut]
    proposer = suffix(growing)
    for token in text[cut:]:
        growing.append(token)
        proposer.observe()
    assert proposer.propose([], 40) == suffix(text).propose([], 40)


@given(text=texts, pending=texts)
def test_drafting_behind_a_pending_suffix_leaves_no_trace(text: list[int], pending: list[int]) -> None:
    proposer = suffix(text)
    before = proposer.propose([], 20)
    proposer.propose(pending, 20)
    assert proposer.propose([], 20) == before


def test_the_longest_match_wins_over_the_newest() -> None:
    text = [7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3]
    assert suffix(text).propose([], 1)[0].token == 50


def test_the_newest_of_equal_matches_wins() -> None:
    text = [1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3]
    assert suffix(text).propose([], 1)[0].token == 60


def test_only_the_newest_occurrences_are_examined() -> None:
    """The best match is older than the last `MOST_EXAMINED` occurrences of the seed."""
    text = [9, 1, 2, 3, 50] + [8, 1, 2, 3, 60] * MOST_EXAMINED + [9, 1, 2, 3]
    candidate = suffix(text).propose([], 1)[0]
    assert (candidate.token, candidate.evidence) == (60, 3)


def test_a_match_is_never_longer_than_allowed() -> None:
    text = list(range(30)) * 2
    assert suffix(text, longest=12).propose([], 1)[0].evidence == 12
