"""The text of an answer: one widget, however long it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip

from skippy_tui.markdown import MarkdownLines, shown
from skippy_tui.widgets.follow import GrowingWidget

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp


MARGIN = 1  # columns on both sides, in the lines themselves: cheaper than a padding around them


class AnswerText(GrowingWidget):
    """Markdown that may grow by `append`. Draws the lines that can be seen, and only those that changed."""

    app: SkippyApp

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._texts = [shown(text)]
        self._width = 0  # that the lines are for
        self._markdown: MarkdownLines | None = None
        self._base = Style()  # what shows through the lines
        self._drawn: dict[int, Strip] = {}  # lines as they were drawn on it

    @property
    def lines(self) -> list[Strip]:
        """The lines without what is behind them; none before the first layout."""
        return self._markdown.lines if self._markdown is not None else []

    def append(self, text: str) -> None:
        """Add text of the model."""
        self._texts.append(shown(text))
        if self._markdown is None:
            return
        height = len(self.lines)
        first_changed = self._markdown.feed(self._texts[-1])
        for y in range(first_changed, height):
            self._drawn.pop(y, None)
        if len(self.lines) != height:
            self.refresh(layout=True)
        elif first_changed < height:
            self.refresh(Region(0, first_changed, self._width, height - first_changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if self._markdown is None or width != self._width:
            self._lay_out(width)
        return len(self.lines)

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        if self._markdown is not None:
            self._lay_out(self._width)

    def _lay_out(self, width: int) -> None:
        self._width = width
        self._drawn.clear()
        self._markdown = MarkdownLines(max(width - 2 * MARGIN, 1), self.app.look)
        self._markdown.feed("".join(self._texts))

    # -- drawing ---------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region. Every line is made once: what the styles ask for is in it already."""
        base = self.rich_style
        if base != self._base:
            self._base = base
            self._drawn.clear()
        return [self.render_line(y).crop(crop.x, crop.right) for y in crop.line_range]

    def render_line(self, y: int) -> Strip:
        strip = self._drawn.get(y)
        if strip is None:
            strip = self._drawn[y] = self._made(y)
        return strip

    def _made(self, y: int) -> Strip:
        if y >= len(self.lines):
            return Strip.blank(self._width, self._base)
        strip = Strip([Segment(" " * MARGIN), *self.lines[y]])
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            strip = _marked(strip, *span, self.screen.get_component_rich_style("screen--selection"))
        strip = strip.apply_style(self._base).adjust_cell_length(self._width, self._base).apply_offsets(0, y)
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self.background_colors[1])
        return strip

    # -- selecting with the mouse ----------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        margin = " " * MARGIN
        return selection.extract("\n".join(f"{margin}{line.text.rstrip()}" for line in self.lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._drawn.clear()
        self.refresh()


def _marked(line: Strip, start: int, end: int, style: Style) -> Strip:
    """The line with a part of it in another style; `end` -1 is the end of the line."""
    end = line.cell_length if end == -1 else end
    chosen = [Segment(text, (old or style) + style) for text, old, _ in line.crop(start, end)]
    return Strip.join([line.crop(0, start), Strip(chosen), line.crop(end)])
