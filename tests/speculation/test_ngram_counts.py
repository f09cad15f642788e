"""N-gram counts and the files they are kept in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.speculation.ngram_counts import NgramCounts


def content(counts: NgramCounts) -> dict[tuple[int, ...], dict[int, int]]:
    return {ngram: followers.counts for ngram, followers in counts.items()}


def counted(text: list[int]) -> NgramCounts:
    counts = NgramCounts()
    counts.count(text, 0)
    return counts


def test_every_ngram_counts_what_followed_it() -> None:
    counts = NgramCounts(1, 2)
    counts.count([1, 2, 1, 2, 3], 0)
    assert content(counts) == {
        (1,): {2: 2},
        (2,): {1: 1, 3: 1},
        (1, 2): {1: 1, 3: 1},
        (2, 1): {2: 1},
    }


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_file_holds_everything(text: list[int]) -> None:
    counts = counted(text)
    assert content(NgramCounts.from_bytes(counts.to_bytes())) == content(counts)


def test_the_file_is_that_of_llama_cpp() -> None:
    counts = NgramCounts(2, 2)
    counts.count([7, 8, 9, 7, 8, 9], 2)
    records = struct.pack("<5i2i", 7, 8, -1, -1, 1, 9, 2)
    assert counts.to_bytes()[: len(records)] == records


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_merging_adds_counts(one: list[int], other: list[int]) -> None:
    merged = counted(one)
    merged.merge(counted(other))
    for ngram, followers in merged.items():
        for token, count in followers.counts.items():
            parts = [counts.get(ngram) for counts in (counted(one), counted(other))]
            assert count == sum(part.counts.get(token, 0) for part in parts if part)
        assert followers.total == sum(followers.counts.values())
        assert followers.best_count == max(followers.counts.values())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0" * 19, "cut off in the record at byte 0"),
        (struct.pack("<5i", 1, 2, -1, -1, 1), "damaged record at byte 0"),  # followers are missing
        (struct.pack("<5i", -1, -1, -1, -1, 0), "damaged record at byte 0"),
        (struct.pack("<5i2i", 1, -1, -1, -1, -5, 3, 1), "damaged record at byte 0"),
        (struct.pack("<5i2i", 1, -1, -1, -1, 2**31 - 1, 3, 1), "damaged record at byte 0"),
        (struct.pack("<5i2i", 1, -1, -1, -1, 1, 3, 0), "damaged record at byte 0"),
        (struct.pack("<5i2i", 1, -7, -1, -1, 1, 3, 1), "damaged record at byte 0"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NgramCounts.from_bytes(data)
