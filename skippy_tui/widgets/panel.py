"""A block of text that is redrawn several times a second."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static


class Panel(Static):
    """Lines of text. Only when their number changes the screen is arranged anew, which is what costs."""

    def __init__(self, *, id: str, title: str = "", classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._height = -1
        if title:
            self.border_title = title

    def show(self, lines: Sequence[Content]) -> None:
        """Replace the lines."""
        self.update(Content("\n").join(lines), layout=len(lines) != self._height)
        self._height = len(lines)
