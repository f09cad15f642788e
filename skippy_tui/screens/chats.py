"""The chats that were kept: find, resume, rename, delete."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skippy_tui.store import Store, Summary


class ChatsScreen(ModalScreen[str]):
    """Returns the id of the chosen chat, or an empty text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("down", "move(1)", "Next", show=False),
        Binding("up", "move(-1)", "Previous", show=False),
        Binding("f6", "rename", "Rename"),
        Binding("f8", "delete", "Delete"),
    ]

    def __init__(self, store: Store, words: str = "") -> None:
        super().__init__()
        self._store = store
        self._words = words
        self._found: list[Summary] = []
        self._renaming = ""  # the id of the chat whose title is in the input

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="chats") as dialog:
            dialog.border_title = "chats"
            dialog.border_subtitle = "Enter resumes   F6 renames   F8 deletes   Esc closes"
            yield Input(self._words, placeholder="words to find in titles and texts", compact=True)
            results = OptionList(compact=True)
            results.can_focus = False
            yield results

    async def on_mount(self) -> None:
        await self._search()

    async def on_input_changed(self) -> None:
        if not self._renaming:
            await self._search()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._renaming:
            title = event.value.strip()
            if title:
                await asyncio.to_thread(self._store.rename, self._renaming, title)
            await self._end_renaming()
            return
        chosen = self._chosen()
        self.dismiss(chosen.id if chosen is not None else "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index].id)

    def action_move(self, step: int) -> None:
        results = self.query_one(OptionList)
        if step > 0:
            results.action_cursor_down()
        else:
            results.action_cursor_up()

    async def action_close(self) -> None:
        if self._renaming:
            await self._end_renaming()
        else:
            self.dismiss("")

    def action_rename(self) -> None:
        chosen = self._chosen()
        if chosen is not None:
            self._renaming = chosen.id
            self._words = self.query_one(Input).value
            self.query_one(Input).value = chosen.title
            self.query_one(Vertical).border_subtitle = "Enter renames   Esc leaves the title"

    async def action_delete(self) -> None:
        chosen = self._chosen()
        if chosen is not None and not self._renaming:
            await asyncio.to_thread(self._store.delete, chosen.id)
            await self._search()

    async def _end_renaming(self) -> None:
        self._renaming = ""
        self.query_one(Input).value = self._words
        self.query_one(Vertical).border_subtitle = "Enter resumes   F6 renames   F8 deletes   Esc closes"
        await self._search()

    def _chosen(self) -> Summary | None:
        highlighted = self.query_one(OptionList).highlighted
        return self._found[highlighted] if highlighted is not None and self._found else None

    async def _search(self) -> None:
        words = self.query_one(Input).value
        self._found = await asyncio.to_thread(self._store.summaries, words)
        results = self.query_one(OptionList)
        kept = results.highlighted or 0
        results.clear_options()
        results.add_options(Option(_line(summary)) for summary in self._found)
        if not self._found:
            text = f"no chat with the words {words}" if words.strip() else "no chat has been kept yet"
            results.add_option(Option(Content.styled(text, "$foreground-muted"), disabled=True))
        else:
            results.highlighted = min(kept, len(self._found) - 1)


def _line(summary: Summary) -> Content:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.updated))
    turns = f"{summary.turns:>3} messages"
    parts: list[str | tuple[str, str]] = [(f"{when}  {turns}  ", "$foreground-muted"), summary.title]
    if summary.excerpt and summary.excerpt not in summary.title:
        parts.append((f"  …{summary.excerpt}…", "$foreground-muted italic"))
    return Content.assemble(*parts)
