"""Messages of a chat: prompts, answers that may still grow, and lines about what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from engine.client.sanitize import one_line
from skippy_tui.conversation import ending_of
from skippy_tui.markdown import shown
from skippy_tui.paint import ORIGIN_NAMES, seconds
from skippy_tui.widgets.answer_text import AnswerText
from skippy_tui.widgets.follow import GrowingWidget


class Message(Vertical, GrowingWidget, can_focus=True):
    """A message that can be focused, and then copied or asked again."""

    HELP = """
### A message
Tab and Shift+Tab, the arrow keys, or `j` and `k` go from one message to the next. `c` copies it, `b` copies
its last code block. **F5** asks again for the last answer, **F6** takes the last prompt back to be edited.
**Esc** returns to the prompt, and so does every other letter, which is written there.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy_message", "Copy"),
        Binding("b", "copy_code", "Copy code"),
        Binding("up,k", "app.focus_previous", "Previous", show=False),
        Binding("down,j", "app.focus_next", "Next", show=False),
    ]

    BLANK = True  # but for the mark of the focus, there is nothing to draw beside the children

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.BLANK = not has_focus

    @property
    def text(self) -> str:
        """The text as it was written."""
        raise NotImplementedError

    def action_copy_message(self) -> None:
        self.app.run_command("copy", self.text)  # type: ignore[attr-defined]

    def action_copy_code(self) -> None:
        self.app.run_command("code", self.text)  # type: ignore[attr-defined]


class PromptMessage(Message):
    """What a person asked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    def compose(self) -> ComposeResult:
        yield Static(Content(shown(self._text)), classes="prompt-text")


class AnswerMessage(Message):
    """What the model answered. Grows by `append`; `finish` adds its figures."""

    def __init__(self, text: str = "", result: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._texts = [text]
        self._shown = AnswerText(text)
        figures = "waiting for the engine …" if result is None and not text else answer_figures(result or {})
        self._figures = Static(Content(figures), classes="figures")
        self._figures.display = bool(figures)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def compose(self) -> ComposeResult:
        yield self._shown
        yield self._figures

    def tell(self, text: str) -> None:
        """Say what the answer waits for; gone with its first text."""
        self._figures.update(Content(text))

    def append(self, text: str) -> None:
        """Add text."""
        if text:
            self._figures.display = False
            self._texts.append(text)
            self._shown.append(text)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Show the figures of the answer."""
        figures = answer_figures(result)
        self._figures.update(Content(figures))
        self._figures.display = bool(figures)


def answer_figures(result: Mapping[str, Any]) -> str:
    """One line about an answer: how long, how fast, and what was drafted right."""
    parts = []
    timings = result.get("timings") or {}
    if timings.get("predicted_n"):
        parts.append(f"{timings['predicted_n']} tokens")
        if timings.get("predicted_per_second"):
            parts.append(f"{timings['predicted_per_second']:.1f} tok/s")
        if timings.get("ttft_ms") is not None:
            parts.append(f"first after {seconds(timings['ttft_ms'] / 1000)}")
        if timings.get("prompt_reused_n"):
            parts.append(f"{timings['prompt_reused_n']} of {timings['prompt_n']} prompt tokens reused")
    sources = (result.get("speculative") or {}).get("by_source") or {}
    for source, count in sources.items():
        if count.get("proposed"):
            parts.append(f"{ORIGIN_NAMES.get(source, source)} {count['accepted'] / count['proposed']:.0%}")
    parts.append(ending_of(result))
    return " · ".join(filter(None, parts))


class FailureMessage(Static):
    """Why there is no answer, and the next step: one line."""

    def __init__(self, text: str) -> None:
        super().__init__(Content.assemble(("✕ ", "$text-error"), one_line(text)))


class RemarkMessage(Static):
    """Something the app says in the chat itself: the output of a command."""

    def __init__(self, text: str | Content) -> None:
        super().__init__(text if isinstance(text, Content) else Content(text))
