"""A block of text that is redrawn several times a second."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget


class Panel(Widget):
    """Lines of text, of which only those that changed are drawn.

    Only when their number changes the screen is arranged anew, which is what costs.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str, title: str = "", classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Content] = []
        self._drawn: dict[int, Strip] = {}
        if title:
            self.border_title = title

    @property
    def content(self) -> Content:
        """Everything that is shown."""
        return Content("\n").join(self._lines)

    def show(self, lines: Sequence[Content]) -> None:
        """Replace the lines; what is too long goes on in the next one."""
        width = self.content_size.width
        old, self._lines = self._lines, []
        for line in lines:
            self._lines += line.wrap(width) if 0 < width < line.cell_length else [line]
        if len(self._lines) != len(old):
            self._drawn.clear()
            self.refresh(layout=True)
            return
        for y, (before, now) in enumerate(zip(old, self._lines, strict=True)):
            if not now.is_same(before):
                self._drawn.pop(y, None)
                self.refresh(Region(0, y, width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._drawn.get(y)
        if strip is None:
            room = self.content_size.width
            strip = self._drawn[y] = Visual.to_strips(self, self._lines[y], room, 1, self.visual_style)[0]
        return strip

    def notify_style_update(self) -> None:
        self._drawn.clear()
        super().notify_style_update()

    def on_resize(self) -> None:
        self._drawn.clear()
        self.refresh()
