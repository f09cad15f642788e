"""A block of text that is redrawn several times a second."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.style import Style

from skippy_tui.paint import segments_of
from skippy_tui.widgets.framed import FramedWidget


class Panel(FramedWidget):
    """Lines of text, of which only those that changed are drawn.

    Only when their number changes the screen is arranged anew, which is what costs.
    """

    ALLOW_SELECT = False

    def __init__(self, *, id: str, title: str = "", classes: str = "") -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Content] = []
        self._drawn: dict[int, Strip] = {}
        self._styles: dict[tuple[str | Style, ...], RichStyle] = {}
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
            strip = self._drawn[y] = Strip(segments_of(self._lines[y], self._style_of))
        return strip

    def _style_of(self, styles: tuple[str | Style, ...]) -> RichStyle:
        """Styles on one another, on that of the panel. Working it out costs more than the rest of a line."""
        style = self._styles.get(styles)
        if style is None:
            parsed = (Style.parse(style) if isinstance(style, str) else style for style in styles)
            style = self._styles[styles] = Style.combine([self.visual_style, *parsed]).rich_style
        return style

    def notify_style_update(self) -> None:
        self._styles.clear()
        self._drawn.clear()
        super().notify_style_update()

    def on_resize(self) -> None:
        self._drawn.clear()
        self.refresh()
