"""The three tiers and their thresholds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.ngram_cache import LAX, STATIC_WEIGHT, STRICT, NgramCache, Thresholds
from engine.speculation.ngram_counts import STATIC_NGRAM, NgramCounts

texts = st.lists(st.integers(0, 2), max_size=80)


def cache(history: list[int], smallest: int = 1, largest: int = 4, **tiers: NgramCounts | None) -> NgramCache:
    return NgramCache(history, smallest=smallest, largest=largest, max_proposal=64, **tiers)


def tokens(proposer: NgramCache, pending: list[int], budget: int = 10) -> list[int]:
    return [candidate.token for candidate in proposer.propose(pending, budget)]


def counts(*records: tuple[tuple[int, ...], dict[int, int]]) -> NgramCounts:
    """Counts as given, whatever text they came from."""
    result = NgramCounts()
    for ngram, followers in records:
        for token, count in followers.items():
            for _ in range(count):
                result.count([*ngram, token], len(ngram))
    return result


def test_the_longest_ngram_decides() -> None:
    history = [1, 2, 3, 50, 9, 2, 3, 60, 9, 2, 3, 60, 1, 2, 3]
    assert tokens(cache(history, largest=3), [], 1) == [50]
    assert tokens(cache(history, largest=2), [], 1) == [60]


def test_one_sample_of_a_small_ngram_is_not_enough() -> None:
    """Lax thresholds: the two smallest sizes need two samples, longer ones a single one."""
    history = [5, 6, 7, 8, 5, 6, 7]
    assert tokens(cache(history, largest=1), [], 1) == []
    assert tokens(cache(history, largest=2), [], 1) == []
    assert tokens(cache(history, largest=3), [], 1) == [8]
    assert tokens(cache(history, smallest=3, largest=3), [], 1) == [8]


def test_a_follower_needs_its_share() -> None:
    """Lax thresholds: two thirds for the smallest size."""
    clear = [1, 2, 1, 2, 1, 3, 1]  # 2 of 3
    even = [1, 2, 1, 3, 1]  # 1 of 2
    assert tokens(cache(clear, largest=1), [], 1) == [2]
    assert tokens(cache(even, largest=1), [], 1) == []


def test_the_dynamic_tier_has_strict_thresholds() -> None:
    enough = counts(((7,), {8: 4}))
    few = counts(((7,), {8: 3}))
    history = [1, 2, 7]
    assert tokens(cache(history, largest=1, dynamic=enough), [], 1) == [8]
    assert tokens(cache(history, largest=1, dynamic=few), [], 1) == []


def test_the_context_comes_before_the_dynamic_tier() -> None:
    history = [7, 5, 7, 5, 7]
    assert tokens(cache(history, largest=1, dynamic=counts(((7,), {8: 9}))), [], 1) == [5]


def test_the_static_tier_drafts_from_pairs() -> None:
    history = [1, 6, 7]
    assert tokens(cache(history, static=counts(((6, 7), {8: 2}))), [], 1) == [8]
    assert tokens(cache(history, static=counts(((6, 7), {8: 1}))), [], 1) == []


def test_the_static_tier_weighs_candidates_of_the_others() -> None:
    """3 of 4 would do, but the corpus knows the other one: one sample of it is not enough."""
    history = [6, 7, 3, 6, 7, 3, 6, 7, 3, 6, 7, 4, 6, 7]
    static = counts(((6, 7), {4: 1}))
    assert tokens(cache(history, smallest=2, largest=2), [], 1) == [3]
    assert tokens(cache(history, smallest=2, largest=2, static=static), [], 1) == []


def test_it_drafts_after_a_provisional_prefix_and_forgets_it() -> None:
    history = [1, 2, 3, 4, 5, 6, 9]
    proposer = cache(history, smallest=3)
    assert tokens(proposer, [1, 2, 3], 3) == [4, 5, 6]
    assert tokens(proposer, [], 3) == []


def test_no_request_sees_the_counts_of_another() -> None:
    """C2: without a shared store a second request drafts from its own text only."""
    first = cache([1, 2, 3, 4, 1, 2, 3])
    assert tokens(first, [], 1) == [4]
    assert tokens(cache([9, 8, 1, 2, 3]), [], 1) == []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40))
def test_counts_that_grew_equal_those_made_at_once(text: list[int], cut: int) -> None:
    growing = text[:cut]
    proposer = cache(growing)
    for token in text[cut:]:
        growing.append(token)
        proposer.observe()
    assert proposer.propose([], 20) == cache(text).propose([], 20)


def counted(text: list[int], into: NgramCounts) -> NgramCounts:
    into.count(text, 0)
    return into


def followers_in(text: list[int], ngram: list[int]) -> list[int]:
    """What followed an n-gram, in order."""
    size = len(ngram)
    return [text[end] for end in range(size, len(text)) if text[end - size : end] == ngram]


def heaviest(followers: list[int], static: list[int]) -> int:
    """The most frequent follower: the first that came to its count, or the first that was seen if weighed."""
    seen = Counter(followers)
    if static:
        corpus = Counter(static)
        return max(seen, key=lambda token: seen[token] * (STATIC_WEIGHT * corpus[token] or 1))
    running: Counter[int] = Counter()
    for token in followers:
        running[token] += 1
        if running[token] == max(seen.values()):
            return token
    raise AssertionError("no followers")


def enough(followers: list[int], token: int, thresholds: Thresholds, size: int) -> bool:
    share = 100 * followers.count(token) / len(followers)
    return len(followers) >= thresholds.samples[size - 1] and share >= thresholds.percent[size - 1]


def next_by_scan(
    text: list[int], tiers: list[tuple[list[int], Thresholds]], sizes: range, corpus: list[int]
) -> tuple[int, int] | None:
    """(token, size of the n-gram) by the rules of the three tiers, counted anew."""
    weights = followers_in(corpus, text[-STATIC_NGRAM:]) if len(text) >= STATIC_NGRAM else []
    for source, thresholds in tiers:
        for size in reversed(sizes):
            followers = followers_in(source, text[-size:]) if len(text) >= size else []
            if followers and enough(followers, token := heaviest(followers, weights), thresholds, size):
                return token, size
    if weights and enough(weights, token := heaviest(weights, []), LAX, STATIC_NGRAM):
        return token, STATIC_NGRAM
    return None


@settings(max_examples=400)
@given(
    text=texts,
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    pending=st.lists(st.integers(0, 3), max_size=6),
    bounds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    earlier=st.none() | texts,
    corpus=st.none() | texts,
)
def test_it_drafts_what_a_scan_of_the_whole_text_does(
    text: list[int],
    steps: list[int],
    pending: list[int],
    bounds: tuple[int, int],
    earlier: list[int] | None,
    corpus: list[int] | None,
) -> None:
    """Also while the text grows by some tokens at a time, and with every combination of tiers."""
    sizes = range(min(bounds), max(bounds) + 1)
    dynamic = None if earlier is None else counted(earlier, NgramCounts())
    static = None if corpus is None else counted(corpus, NgramCounts(STATIC_NGRAM, STATIC_NGRAM))
    history: list[int] = []
    proposer = cache(history, sizes[0], sizes[-1], dynamic=dynamic, static=static)
    tiers = [(history, LAX), (earlier or [], STRICT)]
    for step in steps:
        history.extend(text[len(history) : len(history) + step])
        ahead, expected = [*history, *pending], []
        while len(expected) < 20:
            found = next_by_scan(ahead, tiers, sizes, corpus or [])
            if found is None:
                break
            token, size = found
            expected.append((token, size + len(expected)))
            ahead.append(token)
        drafted = proposer.propose(pending, 20)
        assert [(candidate.token, candidate.evidence) for candidate in drafted] == expected
