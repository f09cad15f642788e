"""Lines inside a border, where few of them change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands beside every line: border and padding. `behind` fills what a line leaves."""

    size: Size  # that it was made for
    left: Strip
    right: Strip
    behind: Style


class FramedWidget(Widget):
    """Puts lines into their frame itself.

    Textual works the border, its title and the padding out anew for every few lines that changed, which costs
    several times as much as the lines.
    """

    _frame: Frame | None = None

    def refresh(self, *regions: Region, **options: Any) -> Self:  # type: ignore[override]
        if not regions:
            self._frame = None
        return super().refresh(*regions, **options)

    def render_lines(self, crop: Region) -> list[Strip]:
        size, top = self.outer_size, self.content_offset.y
        if crop.y < top or crop.bottom > top + self.size.height or crop.column_span != (0, size.width):
            return super().render_lines(crop)
        if self._frame is None or self._frame.size != size:
            self._frame = self._make_frame(size, top)
        return [self._framed(self.render_line(y - top), self._frame) for y in crop.line_range]

    def _make_frame(self, size: Size, y: int) -> Frame:
        strip = super().render_lines(Region(0, y, size.width, 1))[0]
        start = self.content_offset.x
        below, own = self.background_colors
        return Frame(
            size,
            strip.crop(0, start),
            strip.crop(start + self.size.width, size.width),
            Style(bgcolor=(below + own).rich_color),
        )

    def _framed(self, line: Strip, frame: Frame) -> Strip:
        line = line.adjust_cell_length(self.size.width, frame.behind)
        for line_filter in self.get_line_filters():
            line = line.apply_filter(line_filter, self.background_colors[1])
        return Strip.join([frame.left, line, frame.right])
