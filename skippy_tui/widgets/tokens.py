"""The answer as tokens, coloured by where each came from. A rejected draft flashes before its correction.

Lines are wrapped once, when a token comes; drawing looks at visible lines only, so length costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.client.sanitize import visible
from engine.view import Request, Token
from skippy_tui.paint import NEW_LINE, ORIGIN_NAMES, quoted
from skippy_tui.themes import ORIGINS
from skippy_tui.widgets.follow import GrowingWidget
from skippy_tui.widgets.framed import FramedWidget

FLASH_SECONDS = 0.9
# What tells origins apart where there are no colours.
MARKS = {
    "mtp": "underline",
    "ngram": "bold",
    "draft": "bold underline",
    "correction": "reverse",
    "free": "italic",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A token, or its part on one line. `shade` alternates, so that neighbours can be told apart."""

    text: str
    origin: str
    shade: int


class TokenFlow(FramedWidget, ScrollView, GrowingWidget, can_focus=True):
    """Tokens that wrap like text. Redrawn from the state by the main screen."""

    HELP = """
### Tokens
Every token of the answer by its origin: **target** was computed without a draft, **MTP**, **n-gram**
and **draft** were guessed and confirmed, a **correction** took the place of a wrong guess, **free**
came on top of a window whose drafts were all right. A rejected draft flashes, crossed out, before its
correction. `⏎` is a line break in a token.
"""

    def __init__(self, clock: Callable[[], float], *, whole: bool, id: str) -> None:
        super().__init__(id=id)
        self._clock = clock
        self._whole = whole  # an answer as it is broken into lines, to scroll through; or its newest tokens
        self._request = ""
        self._tokens: list[Token] = []
        self._lines: list[list[Cell]] = [[]]
        self._room = 0
        self._flash: tuple[str, float] | None = None  # text, until when
        self._seen_windows = 0
        self._labelled: object = None
        self._styles: dict[tuple[str, int], Style] = {}
        self.border_title = "tokens"

    @property
    def flashing(self) -> bool:
        """Whether a rejected draft is still to be seen, so that it has to go."""
        return self._flash is not None

    # -- what it is given ------------------------------------------------------------------------------

    def draw(self, request: Request | None) -> None:
        """Take the tokens that are not here yet."""
        if request is None:
            self._forget()
            return
        is_new = request.id != self._request
        if is_new:
            self._begin(request.id)
        fresh = request.tokens[len(self._tokens) :]
        height = 0 if is_new else len(self._lines)
        changed = self._watch_rejects(request) or bool(fresh) or is_new
        for token in fresh:
            self._tokens.append(token)
            self._put(token, len(self._tokens))
        if changed:
            self._fit(height)
            self._label(request)

    def _begin(self, request: str) -> None:
        self._request, self._tokens, self._lines = request, [], [[]]
        self._flash, self._seen_windows = None, 0

    def _forget(self) -> None:
        """There is no answer any more."""
        if not self._request:
            return
        self._begin("")
        self._labelled = None
        self.border_title, self.border_subtitle = "tokens", ""
        self._fit()

    def _watch_rejects(self, request: Request) -> bool:
        now = self._clock()
        fresh = request.windows[self._seen_windows :]
        self._seen_windows += len(fresh)
        before = self._flash
        for window in fresh:
            if window.done.rejected:
                self._flash = (visible(window.done.rejected[1]), now + FLASH_SECONDS)
        if self._flash is not None and (now >= self._flash[1] or request.finished is not None):
            self._flash = None
        return self._flash != before

    def _label(self, request: Request) -> None:
        """Title and subtitle, which are costly to set, only when they change."""
        label = (_origins_of(request), len(request.rejections))
        if label != self._labelled:
            self._labelled = label
            self.border_title = self._title(request)
            self.border_subtitle = self._subtitle(request)

    def _title(self, request: Request) -> Content:
        """The legend, where the answer can show more than one origin."""
        origins = _origins_of(request)
        parts: list[str | tuple[str, str]] = ["tokens"]
        for origin in origins if len(origins) > 1 else ():
            mark = MARKS.get(origin, "") if self.app.no_color else ""
            name = (ORIGIN_NAMES[origin], f"not bold $foreground-muted {mark}".rstrip())
            parts += [("  ■ ", f"$origin-{origin}"), name]
        return Content.assemble(*parts)

    def _subtitle(self, request: Request) -> Content:
        if not request.rejections:
            return Content("")
        last = request.rejections[-1]
        return Content.assemble(
            ("last reject ", "$foreground-muted"),
            (quoted(last.drafted), "$error strike"),
            " → ",
            quoted(last.actual),
        )

    # -- wrapping --------------------------------------------------------------------------------------

    def _put(self, token: Token, number: int) -> None:
        shade = number % 2
        parts = visible(token.text).replace("\t", "→").split("\n")
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            text = part if last else part + NEW_LINE
            if text:
                self._put_text(text, token.origin, shade)
            if not last and self._whole:
                self._lines.append([])

    def _put_text(self, text: str, origin: str, shade: int) -> None:
        room = max(self._room, 8)
        used = sum(cell_len(cell.text) for cell in self._lines[-1])
        if used + cell_len(text) > room and used:
            self._lines.append([])
        while cell_len(text) > room:
            self._lines[-1].append(Cell(text[:room], origin, shade))
            self._lines.append([])
            text = text[room:]
        self._lines[-1].append(Cell(text, origin, shade))

    def _fit(self, height: int = 0) -> None:
        """Show the lines; as long as there are `height` of them, all but the last are as they were."""
        if len(self._lines) == height:
            last = Region(0, height - 1 - self._first_line(), self.size.width, 1)
            if self.size.region.contains_region(last):
                self.refresh(last)
            return
        if self._whole:
            follow = self.scroll_offset.y >= self.max_scroll_y - 1
            self.virtual_size = Size(self._room, len(self._lines))
            if follow:
                self.scroll_to(y=self.max_scroll_y, animate=False, force=True, immediate=True)
        self.refresh(self.size.region)  # not the border

    def on_resize(self) -> None:
        room = self.scrollable_content_region.width
        if room == self._room:
            return
        self._room = room
        self._lines = [[]]
        for number, token in enumerate(self._tokens, 1):
            self._put(token, number)
        self._fit()

    # -- drawing ---------------------------------------------------------------------------------------

    def _first_line(self) -> int:
        """The line at the top."""
        return self.scroll_offset.y if self._whole else max(len(self._lines) - self.size.height, 0)

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        number = y + self._first_line()
        base = self.rich_style
        if number >= len(self._lines):
            return Strip.blank(width, base)
        segments = [Segment(cell.text, self._style(cell.origin, cell.shade)) for cell in self._lines[number]]
        if self._flash is not None and number == len(self._lines) - 1:
            segments.insert(
                max(len(segments) - 1, 0),
                Segment(self._flash[0].replace("\n", NEW_LINE), self._flash_style()),
            )
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, origin: str, shade: int) -> Style:
        style = self._styles.get((origin, shade))
        if style is None:
            style = self._styles[origin, shade] = self._make_style(origin, shade)
        return style

    def _make_style(self, origin: str, shade: int) -> Style:
        variables = self.app.theme_variables
        color = Color.parse(variables.get(f"origin-{origin}", variables["foreground"]))
        background = self.background_colors[1]
        tint = (0.07, 0.13) if origin == "target" else (0.16, 0.26)
        behind = background.blend(color, tint[shade])
        mark = MARKS.get(origin, "none") if self.app.no_color else "none"
        return Style.parse(mark) + Style(color=color.rich_color, bgcolor=behind.rich_color)

    def _flash_style(self) -> Style:
        variables = self.app.theme_variables
        error = Color.parse(variables["error"])
        return Style(color=self.background_colors[1].rich_color, bgcolor=error.rich_color, strike=True)


def _origins_of(request: Request) -> list[str]:
    """Origins that this answer can show: the target's own, and those of its strategy."""
    drafted = [source for source in ("mtp", "ngram", "draft") if source in request.by_source]
    used = ["target", *drafted, *(["correction", "free"] if drafted else [])]
    return [origin for origin in ORIGINS if origin in used]
