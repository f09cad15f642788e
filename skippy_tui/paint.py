"""Small pictures made of characters: bars, sparklines, timelines. Pure.

Colours are names of theme variables, so a picture follows the theme; figures have fixed widths, so that
nothing around them moves when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.style import Style

from engine.client.sanitize import visible
from engine.view import Rejection
from skippy_tui.figures import Span

# Not the full block: rows one below the other would grow together.
LEVELS = "▁▂▃▄▅▆▇"
NEW_LINE = "⏎"
DRAFTING = "▚"
ORIGIN_NAMES = {
    "target": "target",
    "mtp": "MTP",
    "ngram": "n-gram",
    "draft": "draft",
    "correction": "correction",
    "free": "free",
}


def bar(fraction: float, width: int, style: str) -> Content:
    """A horizontal bar, exact to half a cell, on a track."""
    full, half = divmod(round(min(max(fraction, 0.0), 1.0) * width * 2), 2)
    rest = width - full - half
    track = ("╺" if rest and not half else "━") + "━" * (rest - 1) if rest else ""
    return Content.assemble(("━" * full + "╸" * half, style), (track, "$track"))


def sparkline(values: Sequence[float | None], width: int, top: float = 0.0) -> str:
    """The newest values as columns of seven heights; a dot where there is none."""
    shown = list(values)[-width:]
    highest = top or max((value for value in shown if value is not None), default=0.0)
    signs = []
    for value in shown:
        if value is None:
            signs.append("·")
        else:
            share = value / highest if highest > 0 else 0.0
            signs.append(LEVELS[min(round(share * (len(LEVELS) - 1)), len(LEVELS) - 1)])
    return "".join(signs).ljust(width)


def percent(fraction: float) -> str:
    """Four characters: ` 61%`."""
    return f"{fraction * 100:3.0f}%"


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def milliseconds(value: float) -> str:
    """At most five characters, with as many digits as say something."""
    if value < 100:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}s"


def seconds(value: float) -> str:
    """A duration for people: `0.21 s`, `3.4 s`, `2 min`."""
    if value < 1:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def shortened(text: str, width: int) -> str:
    """At most `width` characters; what is too long loses its middle, since both ends tell the most."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def in_one_line(text: str) -> str:
    """Text of tokens with its line breaks as signs, and with the spaces at its ends."""
    return visible(text).replace("\n", NEW_LINE).replace("\t", "→")


def quoted(text: str) -> str:
    """A token's text between quotes, spaces included."""
    return f"‘{in_one_line(text)}’"


def drafted_by(rejection: Rejection) -> str:
    """`n-gram 3/7`: the source, and which of the drafts of its window it was; `MTP` of one that was alone."""
    source = ORIGIN_NAMES.get(rejection.source, rejection.source)
    return f"{source} {rejection.place + 1}/{rejection.width}" if source and rejection.width > 1 else source


def timeline_row(spans: Sequence[Span], start: float, end: float, width: int) -> Content:
    """One stage's row of the timeline, exact to half a cell. Neighbouring windows differ in shade."""
    half = (end - start) / (2 * width)
    halves: list[str] = [""] * (2 * width)
    for span in sorted(spans, key=lambda item: _LAYERS.index(item.kind)):
        first = max(int((span.start - start) / half + 0.5), 0)
        last = max(int((span.end - start) / half + 0.5), first + 1)
        kind = ("even" if span.window % 2 == 0 else "odd") if span.kind == "useful" else span.kind
        for position in range(first, min(last, 2 * width)):
            halves[position] = kind
    cells = (_cell(halves[i], halves[i + 1]) for i in range(0, 2 * width, 2))
    runs = [(style, "".join(sign for sign, _ in run)) for style, run in groupby(cells, key=itemgetter(1))]
    return Content.assemble(*((signs, style) for style, signs in runs))


_LAYERS = ("pending", "stale", "draft", "useful")  # kinds of spans, from the bottom up
_SHADE = {
    "even": "$window-even",
    "odd": "$window-odd",
    "draft": "$accent",
    "stale": "$error",
    "pending": "$foreground-muted",
    "": "$track",
}
_TEXTURE = {"draft": DRAFTING, "stale": "▒", "pending": "░"}


def _cell(left: str, right: str) -> tuple[str, str]:
    if left == right:
        sign = _TEXTURE.get(left, "█" if left else " ")
        return sign, f"{_SHADE[left]} on $track"
    if not left:
        return "▐", f"{_SHADE[right]} on $track"
    return "▌", f"{_SHADE[left]} on {_SHADE[right]}"


def segments_of(line: Content, style_of: Callable[[tuple[str | Style, ...]], RichStyle]) -> list[Segment]:
    """One line as a terminal takes it. `style_of` gives the look of styles that lie on one another."""
    text, spans = line.plain, line.spans
    edges = sorted({0, len(text), *(span.start for span in spans), *(span.end for span in spans)})
    segments: list[Segment] = []
    for start, end in pairwise(edges):
        covering = tuple(span.style for span in spans if span.start <= start < span.end)
        segments.append(Segment(text[start:end], style_of(covering)))
    return segments
