"""Help: what has the focus, then every command with its key."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Markdown, Static

from skippy_tui.commands import COMMANDS

KEY_WIDTH = 9
USAGE_WIDTH = 26


class HelpScreen(ModalScreen[None]):
    """Esc, F1 or q close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss", "Close"),
    ]

    def __init__(self, focused: Widget | None) -> None:
        super().__init__()
        self._focused = focused

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="help") as dialog:
            dialog.border_title = "help"
            dialog.border_subtitle = "Esc closes"
            with VerticalScroll():
                yield Markdown("\n".join(self._texts()))
                yield Static(_all_commands(), id="help-commands")

    def _texts(self) -> list[str]:
        """Help of the focused widget first, then of the panels, which cannot be focused."""
        texts: list[str] = []
        node = self._focused
        while node is not None and not texts:
            if node.HELP:
                texts.append(node.HELP)
            node = node.parent if isinstance(node.parent, Widget) else None
        from skippy_tui.widgets.pipeline import PipelinePanel
        from skippy_tui.widgets.speculation import SpeculationPanel

        panels = [panel.HELP for panel in (SpeculationPanel, PipelinePanel)]
        return [*texts, *panels]

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def _all_commands() -> Content:
    lines: list[Content] = []
    group = ""
    for command in COMMANDS.values():
        if command.group != group:
            group = command.group
            lines += [Content(""), Content.styled(group, "bold $primary")]
        lines.append(
            Content.assemble(
                (command.key_shown.ljust(KEY_WIDTH), "bold $accent"),
                command.usage.ljust(USAGE_WIDTH),
                (command.help, "$foreground-muted"),
            )
        )
    return Content("\n").join(lines)
