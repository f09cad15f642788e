"""Search in earlier prompts (Ctrl+R)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

SHOWN = 200


class HistoryScreen(ModalScreen[str]):
    """Returns the chosen prompt, or an empty text. The newest stands first; every word must occur."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('')", "Close"),
        Binding("down,ctrl+r", "move(1)", "Older", show=False),
        Binding("up", "move(-1)", "Newer", show=False),
    ]

    def __init__(self, prompts: Sequence[str]) -> None:
        super().__init__()
        newest_first = list(reversed(prompts))
        self._prompts = list(dict.fromkeys(newest_first))
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="history") as dialog:
            dialog.border_title = "earlier prompts"
            dialog.border_subtitle = "Enter takes one   Esc closes"
            yield Input(placeholder="words to find", compact=True)
            results = OptionList(compact=True)
            results.can_focus = False
            yield results

    def on_mount(self) -> None:
        self._search("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._search(event.value)

    def on_input_submitted(self) -> None:
        highlighted = self.query_one(OptionList).highlighted
        self.dismiss(self._found[highlighted] if highlighted is not None else "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])

    def action_move(self, step: int) -> None:
        results = self.query_one(OptionList)
        if step > 0:
            results.action_cursor_down()
        else:
            results.action_cursor_up()

    def _search(self, text: str) -> None:
        words = text.lower().split()
        self._found = [p for p in self._prompts if all(word in p.lower() for word in words)][:SHOWN]
        results = self.query_one(OptionList)
        results.clear_options()
        results.add_options(Option(Content(" ⏎ ".join(prompt.splitlines()))) for prompt in self._found)
        if self._found:
            results.highlighted = 0
