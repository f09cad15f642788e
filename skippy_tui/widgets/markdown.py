"""Markdown as models write it: nothing that they wrote is lost."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.widgets import Markdown

from engine.client.sanitize import visible

_LINE_SEPARATORS = str.maketrans({"\u2028": "\n", "\u2029": "\n"})


def shown(text: str) -> str:
    """Model text that may be drawn: control sequences are shown, not obeyed."""
    return visible(text).translate(_LINE_SEPARATORS)


def model_markdown(text: str | None = None) -> Markdown:
    """A Markdown widget for text of a model."""
    return Markdown(text, parser_factory=_parser, open_links=False)


def _parser() -> MarkdownIt:
    """Tags are text, since models write about HTML; a line break is one, since models write poems."""
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("keep_line_breaks", _keep_line_breaks)
    return parser


def _keep_line_breaks(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
