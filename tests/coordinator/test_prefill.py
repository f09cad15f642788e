"""In which batches a prompt is computed, and in which the answer to it when it is taken up again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.coordinator.prefill import DECODE_ROWS, PromptFeed, Span, even_spans


def chunks(feed: PromptFeed) -> list[Span]:
    """All chunks, each acknowledged before the next one is sent."""
    found = []
    while (chunk := feed.next_chunk()) is not None:
        found.append(chunk)
        feed.acknowledged(chunk[1])
    return found


@given(st.integers(0, 500), st.integers(0, 2000), st.integers(1, 300))
def test_spans_cover_everything_evenly(start: int, length: int, most: int) -> None:
    spans = even_spans(start, start + length, most)
    assert [position for a, b in spans for position in range(a, b)] == list(range(start, start + length))
    sizes = [b - a for a, b in spans]
    assert len(sizes) == -(-length // most)
    assert max(sizes, default=0) <= most
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(st.integers(64, 3000))
def test_a_long_prompt_has_no_small_batch(length: int) -> None:
    """Batches of 64 rows and more are computed alike, smaller ones are not."""
    feed = PromptFeed(range(length), length, reused=0, rows=128, credit=3)
    batches = [*chunks(feed), feed.last_batch]
    assert batches[-1][1] == length
    assert min(end - start for start, end in batches) >= 64


def test_a_short_prompt_is_one_batch() -> None:
    feed = PromptFeed(range(40), 40, reused=0, rows=128, credit=3)
    assert chunks(feed) == []
    assert feed.last_batch == (0, 40)


def test_what_is_reused_is_not_computed() -> None:
    feed = PromptFeed(range(300), 300, reused=290, rows=128, credit=3)
    assert chunks(feed) == []
    assert feed.last_batch == (290, 300)
    assert (feed.computed, feed.total) == (0, 10)


@given(st.integers(1, 400), st.integers(1, 400))
def test_an_answer_taken_up_again_is_computed_like_it_was_decoded(prompt: int, answered: int) -> None:
    feed = PromptFeed(range(prompt + answered), prompt, reused=0, rows=128, credit=3)
    batches = chunks(feed)
    assert feed.last_batch == (prompt + answered - 1, prompt + answered)
    assert [p for a, b in batches for p in range(a, b)] == list(range(prompt + answered - 1))
    assert any(end == prompt for _, end in batches)
    assert all(end - start <= DECODE_ROWS for start, end in batches if start >= prompt)


def test_no_more_chunks_are_under_way_than_there_is_credit() -> None:
    feed = PromptFeed(range(1000), 1000, reused=0, rows=100, credit=3)
    assert [feed.next_chunk() for _ in range(4)] == [(0, 100), (100, 200), (200, 300), None]
    feed.acknowledged(100)
    assert feed.next_chunk() == (300, 400)
    assert not feed.exhausted
