"""Rejected drafts of the newest answer: which, by whom, what the model said instead, and where."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from engine.view import Rejection, Request
from skippy_tui.feed import Feed
from skippy_tui.paint import ORIGIN_NAMES, drafted_by, in_one_line, quoted

SHOWN = 200  # of the newest
READ_SECONDS = 0.5  # between two looks at an answer that still comes
WIDTHS = (6, 17, 12, 17)  # of token, draft, source, and what the model said
CONTEXT_TOKENS = 12  # before the place of a draft
CONTEXT_WIDTH = 16  # of their text in the list
STORY_WIDTH = 40  # and below it


class RejectsScreen(ModalScreen[None]):
    """The newest rejection stands first; what is said below is about the one that is highlighted."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+o,q", "dismiss", "Close"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._request: Request | None = None
        self._read = 0  # rejections that are in the list

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="rejects") as dialog:
            dialog.border_title = "rejected drafts"
            dialog.border_subtitle = "↑↓ step through them   Esc closes"
            yield Static(_columns("token", "drafted", "by", "the model said", "after"), id="rejects-head")
            yield OptionList(compact=True)
            yield Static(id="rejects-story")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.read()
        self.set_interval(READ_SECONDS, self.read)

    def read(self) -> None:
        """Take what has been rejected since; the highlight stays where it is, or on the newest."""
        request = self._feed.state.request
        if request is None:
            return
        known = self._request is not None and self._request.id == request.id
        fresh = len(request.rejections) - (self._read if known else 0)
        self._request, self._read = request, len(request.rejections)
        if known and not fresh:
            return
        options = self.query_one(OptionList)
        place = options.highlighted if known else None
        newest = request.rejections[-SHOWN:][::-1]
        options.clear_options()
        options.add_options(Option(_line(rejection, request)) for rejection in newest)
        if newest:
            options.highlighted = min(place + fresh, len(newest) - 1) if place else 0
        shown = f" the newest {len(newest)} of" if len(newest) < len(request.rejections) else ""
        self.query_one(Vertical).border_title = f"rejected drafts:{shown} {len(request.rejections)}"

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        request = self._request
        if request is not None:
            rejection = request.rejections[self._read - 1 - event.option_index]
            self.query_one("#rejects-story", Static).update(story(rejection, request))


def _line(rejection: Rejection, request: Request) -> Content:
    return _columns(
        f"{rejection.token + 1:>5}",
        Content.styled(quoted(rejection.drafted), "$error strike"),
        drafted_by(rejection),
        quoted(rejection.actual),
        Content.styled(text_before(rejection, request, CONTEXT_WIDTH), "$foreground-muted"),
    )


def _columns(*parts: str | Content) -> Content:
    """All but the last one in a column of their own."""
    *columns, last = (Content(part) if isinstance(part, str) else part for part in parts)
    cells = [
        part.truncate(width - 1, ellipsis=True).pad_right(width - min(part.cell_length, width - 1))
        for part, width in zip(columns, WIDTHS, strict=True)
    ]
    return Content.assemble(*cells, last)


def text_before(rejection: Rejection, request: Request, width: int) -> str:
    """The end of the answer that a draft was to go on with."""
    tokens = request.tokens[max(rejection.token - CONTEXT_TOKENS, 0) : rejection.token]
    text = in_one_line("".join(token.text for token in tokens))
    return text if len(text) <= width else f"…{text[1 - width :]}"


def story(rejection: Rejection, request: Request) -> Content:
    """Why a draft was rejected, and what that cost, in words."""
    source = ORIGIN_NAMES.get(rejection.source, rejection.source) or "a window that was not seen"
    behind = max(rejection.width - rejection.place - 1, 0)
    place = (
        f", draft {rejection.place + 1} of the {rejection.width} in its window" if rejection.width > 1 else ""
    )
    before = text_before(rejection, request, STORY_WIDTH)
    vain = [
        _count(behind, "draft", "after it in its window"),
        _count(rejection.stale, "window", "already sent"),
    ]
    in_vain = f"In vain: {' and '.join(filter(None, vain))}." if any(vain) else "Nothing else was in vain."
    return Content.assemble(
        (f"After ‘{before}’ " if before else "At the beginning ", "$foreground-muted"),
        f"{source} guessed ",
        (quoted(rejection.drafted), "$error strike"),
        f"{place}. The model itself says ",
        (quoted(rejection.actual), "bold"),
        " there, so this is what the answer has. ",
        (in_vain, "$foreground-muted"),
    )


def _count(number: int, name: str, which: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'} {which}" if number else ""
