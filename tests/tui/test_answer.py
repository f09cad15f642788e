"""Pieces of a growing Markdown text: bounded, and nothing is lost where they are cut."""

from __future__ import annotations

import random

import pytest
from markdown_it import MarkdownIt

from skippy_tui.answer import HARD_LIMIT, LINE_LIMIT, SOFT_LIMIT, Pieces
from skippy_tui.conversation import code_blocks


def pieces_of(text: str, rng: random.Random) -> list[str]:
    pieces, cutter, at = [""], Pieces(), 0
    while at < len(text):
        size = rng.randint(1, 40)
        for part in cutter.feed(text[at : at + size]):
            if part.begins:
                pieces.append(part.text)
            else:
                pieces[-1] += part.text
        at += size
    return pieces


def words(markdown: str) -> list[str]:
    """What a reader sees, without fences and the like."""
    found: list[str] = []
    for token in MarkdownIt("gfm-like").parse(markdown):
        found += token.content.split() if token.type in ("inline", "fence", "code_block") else []
    return found


PARAGRAPHS = "".join(f"Paragraph {i} says something about number {i}.\n\n" for i in range(600))
CODE = "Look:\n\n```python\n" + "".join(f"value_{i} = {i}\n" for i in range(2000)) + "```\n\nDone.\n"
LISTS = "".join(f"{i}. item {i}\n   - inner {i}\n" for i in range(900))
ONE_LINE = "word " * 12_000


@pytest.mark.parametrize("text", [PARAGRAPHS, CODE, LISTS, ONE_LINE], ids=["text", "code", "list", "line"])
def test_pieces_are_bounded_and_show_everything(text: str) -> None:
    pieces = pieces_of(text, random.Random(3))
    assert len(pieces) > 2
    assert max(map(len, pieces)) <= max(HARD_LIMIT, LINE_LIMIT) + 1000
    assert [word for piece in pieces for word in words(piece)] == words(text)


def test_a_cut_fence_goes_on_as_a_fence_of_the_same_language() -> None:
    pieces = pieces_of(CODE, random.Random(5))
    assert all(piece.startswith("```python\n") for piece in pieces[1:-1])
    assert all(piece.rstrip().endswith("```") for piece in pieces[:-1])


def test_short_answers_are_one_piece() -> None:
    text = PARAGRAPHS[: SOFT_LIMIT - 1]
    assert pieces_of(text, random.Random(1)) == [text]


def test_code_blocks_are_found_also_while_they_grow() -> None:
    text = "a\n```python\none\n```\nb\n~~~\ntwo\n~~~\n```\nthree"
    assert code_blocks(text) == ["one\n", "two\n", "three"]
