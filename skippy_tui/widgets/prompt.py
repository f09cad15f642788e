"""The prompt: several lines, history, and completion of slash commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

NEW_LINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j")


class Prompt(TextArea):
    """Enter sends, Ctrl+J begins a line, Up and Down at the edges walk through the history."""

    HELP = """
### The prompt
**Enter** asks. **Ctrl+J**, Shift+Enter or Alt+Enter begin a new line; a paste keeps its lines.
**Up** on the first line and **Down** on the last one walk through earlier prompts, **Ctrl+R** searches them.
A line that begins with `/` is a command: **Tab** completes it, and its argument.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Ask", show=False),
        Binding(",".join(NEW_LINE_KEYS), "new_line", "New line", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """Somebody pressed Enter."""

        text: str

    @dataclass
    class Edited(Message):
        """The text changed."""

        text: str

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            placeholder="Ask, or / for commands",
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
        )
        self.earlier: list[str] = []
        self._place = 0  # in the history; its length while something new is written
        self._draft = ""
        self._set_aside = ""  # what was being written when an edit began

    def remember(self, texts: Sequence[str]) -> None:
        """Take earlier prompts, oldest first."""
        self.earlier = list(texts)
        self._place = len(self.earlier)

    def set_text(self, text: str) -> None:
        """Replace the text; the cursor goes to its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Take a text back that could not be used, unless another one has been begun."""
        if not self.text:
            self.set_text(text)

    def begin_edit(self, text: str) -> None:
        """Show an earlier prompt to be changed. What was being written comes back after it."""
        self._set_aside = self._set_aside or self.text
        self.set_text(text)

    def end_edit(self) -> None:
        """The edit is asked, or given up."""
        text, self._set_aside = self._set_aside, ""
        self.give_back(text)

    def show_editing(self, editing: bool) -> None:
        """Say on the border how an edit is left."""
        self.border_subtitle = "editing, Esc gives the turn back" if editing else ""

    def on_text_area_changed(self) -> None:
        self.post_message(self.Edited(self.text))

    async def _on_key(self, event: Key) -> None:
        # The text area takes these for itself before bindings are asked.
        if event.key in ("enter", "tab", *NEW_LINE_KEYS):
            event.prevent_default()
            return
        # Not by a binding: what is written right after Esc may offer suggestions before bindings are asked.
        if event.key == "escape" and self.suggestions.display:
            self.suggestions.display = False
            event.stop()
            return
        await super()._on_key(event)

    def action_submit(self) -> None:
        if self.suggestions.take():
            return
        text = self.text.strip()
        if not text:
            return
        if not self.earlier or self.earlier[-1] != text:
            self.earlier.append(text)
        self._place = len(self.earlier)
        self.load_text("")  # at once: what is typed from here on is another prompt
        self.post_message(self.Submitted(text))

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        if self.suggestions.display:
            self.suggestions.take(complete=True)
        else:
            self.screen.focus_next()

    def action_cursor_up(self, select: bool = False) -> None:
        if self.suggestions.display:
            self.suggestions.action_cursor_up()
        elif self.cursor_at_first_line and not select and self._place > 0:
            self._walk(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self.suggestions.display:
            self.suggestions.action_cursor_down()
        elif self.cursor_at_last_line and not select and self._place < len(self.earlier):
            self._walk(1)
        else:
            super().action_cursor_down(select)

    def _walk(self, step: int) -> None:
        if self._place == len(self.earlier):
            self._draft = self.text
        self._place += step
        self.set_text(self._draft if self._place == len(self.earlier) else self.earlier[self._place])

    @property
    def suggestions(self) -> Suggestions:
        return self.screen.query_one(Suggestions)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What the text may become, and what that is."""

    text: str
    help: str
    complete: bool  # whether nothing has to be added, so that Enter may run it
    more: bool = False  # whether something may be added, so that Tab adds a space


class Suggestions(OptionList, can_focus=False):
    """Completions of what is written, above the prompt."""

    def __init__(self) -> None:
        super().__init__(id="suggestions")
        self.display = False
        self._shown: list[Suggestion] = []
        self._text = ""  # that they are for

    def offer(self, text: str, suggestions: Sequence[Suggestion]) -> None:
        """Show what a text may become; hidden when that is nothing."""
        self._text = text
        if not suggestions and not self._shown:
            return  # as with most keys
        self._shown = list(suggestions)
        self.clear_options()
        width = max((len(item.text) for item in self._shown), default=0)
        self.add_options(
            Option(
                Content.assemble(
                    (item.text.ljust(width + 2), "bold $accent"), (item.help, "$foreground-muted")
                )
            )
            for item in self._shown
        )
        self.display = bool(self._shown)
        if self._shown:
            self.highlighted = 0

    def take(self, *, complete: bool = False) -> bool:
        """Put the highlighted one into the prompt; False if there is nothing to put, so that Enter sends."""
        if not self.display or self.highlighted is None:
            return False
        chosen = self._shown[self.highlighted]
        prompt = self.screen.query_one(Prompt)
        if prompt.text != self._text:
            return False  # somebody types faster than they are found
        if not complete and (chosen.complete or prompt.text.strip() == chosen.text.strip()):
            prompt.set_text(chosen.text)
            self.display = False
            return False
        prompt.set_text(f"{chosen.text.rstrip()} " if chosen.more else chosen.text)
        return True
