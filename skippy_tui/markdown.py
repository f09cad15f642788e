"""Markdown as models write it, as lines for a terminal: nothing that they wrote is lost.

A growing answer is one list of lines. What stands above its last block never changes again, so new text costs
the length of that block, however long the answer is. (A widget for each block, as Textual's own Markdown has,
makes every layout of the screen cost the length of the answer.)
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import dropwhile, takewhile

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style as RichStyle
from rich.theme import Theme as RichTheme
from textual.color import Color
from textual.highlight import HighlightTheme
from textual.strip import Strip
from textual.style import Style

from engine.client.sanitize import visible
from skippy_tui.answer import Pieces

_LINE_SEPARATORS = str.maketrans({"\u2028": "\n", "\u2029": "\n"})

# Rich's names of the parts of a document.
_STYLES = {
    "markdown.h1": "bold underline $primary",
    "markdown.h2": "bold underline $primary",
    "markdown.h3": "bold $primary",
    "markdown.h4": "bold underline",
    "markdown.h5": "bold",
    "markdown.h6": "bold $foreground-muted",
    "markdown.em": "italic",
    "markdown.strong": "bold",
    "markdown.s": "strike",
    "markdown.a": "underline $text-secondary",
    "markdown.item.bullet": "$text-primary",
    "markdown.item.number": "$text-primary",
    "markdown.block_quote": "$foreground-muted",
    "markdown.hr": "$edge",
    "markdown.table.border": "$edge",
    "markdown.table.header": "bold $primary",
}
_INLINE_CODE = {True: "$text-warning on $warning 10%", False: "$text-error on $error 5%"}  # dark, light


def shown(text: str) -> str:
    """Model text that may be drawn: control sequences are shown, not obeyed."""
    return visible(text).translate(_LINE_SEPARATORS)


class Look:
    """How Markdown looks in a theme, given by its variables."""

    def __init__(self, variables: Mapping[str, str], *, dark: bool) -> None:
        behind = Color.parse(variables["background"])
        styles = {**_STYLES, "markdown.code": _INLINE_CODE[dark]}
        self.code = CodeStyles(variables)
        self.console = Console(
            file=io.StringIO(),
            color_system="truecolor",
            force_terminal=True,
            legacy_windows=False,
            theme=RichTheme({name: solid(text, variables, behind) for name, text in styles.items()}),
        )


class CodeStyles:
    """Textual's colours of code."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        behind = Color.parse(variables["surface"])
        self.base = RichStyle(color=variables["foreground"], bgcolor=behind.rich_color)
        self._styles = {
            kind: self.base + solid(text, variables, behind)
            for kind, text in HighlightTheme.STYLES.items()
            if text
        }

    def of(self, kind: tuple[str, ...]) -> RichStyle:
        """The style of a kind of token, or of the kind that it belongs to."""
        style = self._styles.get(kind)
        if style is None:
            style = self._styles[kind] = self.of(kind[:-1]) if kind else self.base
        return style


def solid(text: str, variables: Mapping[str, str], behind: Color) -> RichStyle:
    """A style as Rich takes it: without names of variables, and with no colour that shines through."""
    style = Style.parse(text, dict(variables))
    background = None if style.background is None else behind + style.background
    foreground = None if style.foreground is None else (background or behind) + style.foreground
    return RichStyle(
        color=None if foreground is None else foreground.rich_color,
        bgcolor=None if background is None or background == behind else background.rich_color,
        bold=style.bold,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
    )


# -- parsing ---------------------------------------------------------------------------------------------


def _make_parser() -> MarkdownIt:
    """Tags are text, since models write about HTML; a line break is one, since models write poems.

    Nothing can be opened, so images and links show where they lead.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False}).disable("image")
    parser.core.ruler.push("plain_links_and_breaks", _plain_links_and_breaks)
    return parser


def _plain_links_and_breaks(state: StateCore) -> None:
    for token in state.tokens:
        if token.children:
            token.children = _plain(token.children)


def _plain(children: Sequence[Token]) -> list[Token]:
    plain: list[Token] = []
    target, words = "", ""
    for child in children:
        plain.append(child)
        words += child.content
        if child.type == "softbreak":
            child.type = "hardbreak"
        elif child.type == "link_open":
            child.type, target, words = "a_open", str(child.attrs.get("href", "")), ""
        elif child.type == "link_close":
            child.type = "a_close"
            if target not in (words, f"mailto:{words}"):
                plain.append(Token("text", "", 0, content=f" ({target})"))
    return plain


_PARSER = _make_parser()


def _blocks(source: str) -> list[tuple[int, list[Token]]]:
    """The blocks of a document: the line at which each begins, and its tokens."""
    blocks: list[tuple[int, list[Token]]] = []
    for token in _PARSER.parse(source):
        if token.level == 0 and token.nesting >= 0:
            blocks.append((token.map[0] if token.map else 0, []))
        blocks[-1][1].append(token)
    return blocks


# -- drawing ---------------------------------------------------------------------------------------------


class _Heading(rich_markdown.Heading):
    LEVEL_ALIGN = {}  # noqa: RUF012 - none is centred


class _ListItem(rich_markdown.ListItem):
    """With a dot behind its number, as it was written."""

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        style = console.get_style("markdown.item.number")
        width = len(str(last_number)) + 3
        lines = console.render_lines(self.elements, options.update(width=options.max_width - width))
        begin = f"{number}. ".rjust(width)
        for line in lines:
            yield from (Segment(begin, style), *line, Segment.line())
            begin = " " * width


class _CodeBlock(rich_markdown.CodeBlock):
    """Code on a ground of its own. Rich's takes three times as long as the highlighting itself."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles: CodeStyles = self.theme  # type: ignore[assignment]  # as `_Block` gave it
        room = max(options.max_width - 2, 1)
        edge = Segment(" ", styles.base)
        code = str(self.text).removesuffix("\n").expandtabs(4)
        for line in _lines_of_code(code, self.lexer_name, styles):
            for part in _folded(line, room):
                yield from (edge, *Segment.adjust_line_length(part, room, styles.base), edge, Segment.line())


def _lines_of_code(code: str, language: str, styles: CodeStyles) -> list[list[Segment]]:
    lines: list[list[Segment]] = [[]]
    lexer = _lexer(language)
    tokens = lexer.get_tokens(code) if lexer is not None else [((), f"{code}\n")]
    for kind, text in tokens:
        first, *others = text.split("\n")
        style = styles.of(kind)
        if first:
            lines[-1].append(Segment(first, style))
        lines.extend([Segment(other, style)] if other else [] for other in others)
    return lines[:-1]  # lexers end the last line


@lru_cache(maxsize=32)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return None


def _folded(line: list[Segment], width: int) -> list[list[Segment]]:
    length = Segment.get_line_length(line)
    if length <= width:
        return [line]
    return list(Segment.divide(line, [*range(width, length, width), length]))


class _HorizontalRule(rich_markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style=console.get_style("markdown.hr"))


class _Block(rich_markdown.Markdown):
    """Tokens of one block."""

    elements = {  # noqa: RUF012 - the type that Rich gives it
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _HorizontalRule,
        "list_item_open": _ListItem,
    }
    inlines = {*rich_markdown.Markdown.inlines, "a"}  # noqa: RUF012

    def of(self, tokens: list[Token]) -> _Block:
        """The same for other tokens; making one anew would make a parser as well."""
        block = copy(self)
        block.parsed = tokens
        return block


class MarkdownLines:
    """Feed text, get lines: `lines` holds all of them, for one width and one look."""

    def __init__(self, width: int, look: Look) -> None:
        self.lines: list[Strip] = []
        self._console = look.console
        self._block = _Block("", code_theme=look.code)  # type: ignore[arg-type]
        self._options = look.console.options.update(width=width, height=None)
        self._pieces = Pieces()
        self._open = ""  # text whose lines may still change
        self._final = 0  # lines above it
        self._joined = False  # whether its first block goes on with one that was cut

    def feed(self, text: str) -> int:
        """Add text; returns the first line that is not as it was."""
        first_changed = self._final
        before = self.lines[first_changed:]
        for part in self._pieces.feed(text):
            if part.begins:
                self._draw()
                self._open, self._final, self._joined = "", len(self.lines), part.joined
            self._open += part.text
        self._draw()
        pairs = zip(before, self.lines[first_changed:], strict=False)
        return first_changed + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _draw(self) -> None:
        """Draw what may have changed, and settle the blocks that can change no more."""
        del self.lines[self._final :]
        blocks = _blocks(self._open)
        # A last line that is not complete may turn out to belong to the block before it.
        is_begun = bool(blocks) and blocks[-1][0] >= self._open.count("\n")
        settled = len(blocks) - 1 - is_begun
        for number, (_, tokens) in enumerate(blocks):
            if number == settled > 0:
                self._final = len(self.lines)
            self._put(tokens, joined=self._joined and number == 0)
        if settled > 0:
            self._open = "\n".join(self._open.split("\n")[blocks[settled][0] :])
            self._joined = False

    def _put(self, tokens: list[Token], *, joined: bool) -> None:
        if self.lines and not joined:
            self.lines.append(Strip([]))
        lines = self._console.render_lines(self._block.of(tokens), self._options, pad=False)
        # Rich begins a block that holds others with an empty line.
        self.lines.extend(map(Strip, dropwhile(lambda line: not line, lines)))
