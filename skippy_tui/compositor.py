"""Drawing only what changed, which is what streaming costs most.

Textual renders, at every update, all visible lines of every widget that the rectangle around all changes
touches. A figure at the top and the cursor at the bottom make that the whole screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip

Chops = dict[int, dict[int, Strip | None]]  # by line, then by the column where a piece begins


class SparingCompositor(Compositor):
    """Renders the lines that changed, of the widgets that are to be seen there."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """What changed since the last update; None if nothing did."""
        screen = self.size.region
        changed = [region.intersection(screen) for region in self._dirty_regions]
        self._dirty_regions.clear()
        spans = list(self._regions_to_spans(filter(None, changed)))
        if not spans:
            return None
        chops: Chops = {y: dict.fromkeys(self.cuts[y][:-1]) for y, _, _ in spans}
        for band in bands(spans):
            self._paint(band, chops)
        ends = [cuts[1:] for cuts in self.cuts]
        return ChopsUpdate(cast("Sequence[Mapping[int, Strip | None]]", chops), spans, ends)

    def _paint(self, band: Region, chops: Chops) -> None:
        """Fill the pieces of a band, from the widget in front to that at the back."""
        for widget, (region, clip) in self.visible_widgets.items():
            shown = region.intersection(clip)
            part = shown.intersection(band)
            if not part:
                continue
            lines = Region(shown.x - region.x, part.y - region.y, shown.width, part.height)
            for y, strip in zip(part.line_range, widget.render_lines(lines), strict=True):
                self._fill(chops[y], self.cuts[y], shown, strip)
            if part == band:
                return  # nothing behind it is to be seen

    def _fill(self, line: dict[int, Strip | None], cuts: Sequence[int], shown: Region, strip: Strip) -> None:
        """Put the pieces of a widget's line where no widget in front has put its own."""
        inside = [cut for cut in cuts if shown.x <= cut <= shown.right]
        pieces = strip.divide([cut - shown.x for cut in inside[1:]])
        for cut, piece in zip(inside, pieces, strict=False):
            if line[cut] is None:
                line[cut] = piece


def bands(spans: Iterable[tuple[int, int, int]]) -> Iterator[Region]:
    """The rectangles, as tall as can be, that cover spans (line, first column, column behind the last)."""
    growing: dict[tuple[int, int], Region] = {}
    for y, start, end in spans:
        band = growing.get((start, end))
        if band is not None and band.bottom == y:
            growing[start, end] = band.grow((0, 0, 1, 0))
        else:
            if band is not None:
                yield band
            growing[start, end] = Region(start, y, end - start, 1)
    yield from growing.values()
