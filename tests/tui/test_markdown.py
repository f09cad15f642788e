"""Markdown of a model as lines: growing or whole they are the same, and nothing that was written is lost."""

from __future__ import annotations

import random

import pytest

from skippy_tui.markdown import Look, MarkdownLines, shown
from skippy_tui.themes import load_themes, shipped_themes

WIDTH = 60


def look_of(name: str) -> Look:
    theme = load_themes([shipped_themes()]).themes[name]
    return Look({**theme.to_color_system().generate(), **theme.variables}, dark=theme.dark)


LOOK = look_of("harbour")

TEXTS = {
    "prose": "".join(
        f"# Part {i}\n\nSome *words* and `code` about {i}.\nA line.\n\n> quoted {i}\n" for i in range(90)
    ),
    "code": "Look:\n\n```python\n"
    + "".join(f"def f_{i}():\n    return '{i}'\n\n" for i in range(120))
    + "```\nDone.\n",
    "unknown code": "~~~nonsense\n" + "".join(f"\tvalue {i}\n" for i in range(300)) + "~~~\n",
    "list": "".join(f"{i}. item {i}\n   - inner {i}\n\n" for i in range(1, 200)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| row {i} | `{i}` |\n" for i in range(120)),
}


def grown(text: str, seed: int) -> MarkdownLines:
    markdown, rng, at = MarkdownLines(WIDTH, LOOK), random.Random(seed), 0
    while at < len(text):
        size = rng.randint(1, 60)
        markdown.feed(text[at : at + size])
        at += size
    return markdown


def texts(markdown: MarkdownLines) -> list[str]:
    return [line.text for line in markdown.lines]


def drawn(text: str) -> str:
    markdown = MarkdownLines(WIDTH, LOOK)
    markdown.feed(shown(text))
    return "\n".join(line.rstrip() for line in texts(markdown))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_that_grows_is_drawn_as_one_that_comes_at_once(kind: str) -> None:
    whole = MarkdownLines(WIDTH, LOOK)
    whole.feed(TEXTS[kind])
    assert len(whole.lines) > 60
    assert max(line.cell_length for line in whole.lines) <= WIDTH
    assert texts(grown(TEXTS[kind], 1)) == texts(whole)


def test_lines_above_the_first_change_stay() -> None:
    markdown, text = MarkdownLines(WIDTH, LOOK), TEXTS["prose"]
    for at in range(0, 4000, 37):
        before = texts(markdown)
        changed = markdown.feed(text[at : at + 37])
        assert texts(markdown)[:changed] == before[:changed]
    assert changed > 50


def test_code_that_goes_on_in_another_piece_has_no_gap() -> None:
    lines = texts(grown(TEXTS["unknown code"], 2))
    assert [line.strip() for line in lines] == [f"value {i}" for i in range(300)]


def test_one_empty_line_stands_between_blocks() -> None:
    text = "text\n\n- item\n  - inner\n\n> quoted\n\n| a |\n|---|\n| b |\n\n```\n\ncode\n```\n\nend\n"
    lines = texts(grown(text, 3))
    empty = [number for number, line in enumerate(lines) if not line]
    assert len(empty) == 5
    assert all(lines[number - 1] and lines[number + 1] for number in empty)


def test_long_lines_of_code_are_folded() -> None:
    assert drawn(f"```\n{'x' * 130}\n```\n").replace("\n", "").replace(" ", "") == "x" * 130


def test_tags_links_and_images_are_shown_as_they_were_written() -> None:
    text = "a <b>tag</b>, [words](http://a.example), <http://b.example>, ![picture](c.png)\n"
    expected = "a <b>tag</b>, words (http://a.example), http://b.example, !picture (c.png)"
    assert drawn(text).replace("\n", " ") == expected


def test_numbers_of_a_list_keep_their_dots() -> None:
    text = "9. Earth\n10. Mars\n    goes on\n"
    assert drawn(text).split("\n") == ["  9. Earth", " 10. Mars", "     goes on"]


def test_line_breaks_are_kept_and_control_sequences_shown() -> None:
    assert drawn("roses\nviolets\u2028\x1b[2Jend") == "roses\nviolets\n␛[2Jend"


@pytest.mark.parametrize("name", load_themes([shipped_themes()]).themes)
def test_code_can_be_told_apart_in_every_theme(name: str) -> None:
    markdown = MarkdownLines(WIDTH, look_of(name))
    markdown.feed("```python\nreturn 'text'  # remark\n```\n")
    colors = {segment.style.color for segment in markdown.lines[0] if segment.style and segment.text.strip()}
    assert len(colors) >= 3
