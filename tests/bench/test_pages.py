"""Tables in a page are renewed, and nothing else in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.pages import Page
from engine.errors import UsageError

PAGE = (
    "# Title\n\n<!-- bench: begin -->\nold\n<!-- bench: end -->\n\n"
    "<!-- budget: begin -->\n<!-- budget: end -->\n"
)


def test_tables_take_the_place_of_those_before(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    Page(path, "bench").write("| new |\n")
    Page(path, "budget").write("| µs |")
    assert path.read_text() == (
        "# Title\n\n<!-- bench: begin -->\n| new |\n<!-- bench: end -->\n\n"
        "<!-- budget: begin -->\n| µs |\n<!-- budget: end -->\n"
    )


@pytest.mark.parametrize("text", ["", "<!-- bench: end --><!-- bench: begin -->", "<!-- bench: begin -->"])
def test_a_page_without_the_marks_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(UsageError, match="<!-- bench: begin -->"):
        Page(path, "bench")
