"""The log: native output, notices of the app, and the engine's own log file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import RichLog

from skippy_tui.logbook import FileTail, LogBook

REFRESH_SECONDS = 0.25


class LogScreen(ModalScreen[None]):
    """Follows the log until somebody scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f12,q", "dismiss", "Close"),
    ]

    def __init__(self, logbook: LogBook, engine_log: Path | None) -> None:
        super().__init__()
        self._logbook = logbook
        self._tail = FileTail(engine_log) if engine_log is not None else None
        self._seen = 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide", id="log") as dialog:
            dialog.border_title = "log"
            where = f"{self._logbook.path}   " if self._logbook.path is not None else ""
            dialog.border_subtitle = f"{where}Esc closes"
            yield RichLog(wrap=True, max_lines=5000, auto_scroll=True)

    def on_mount(self) -> None:
        self.query_one(RichLog).focus()
        self.set_interval(REFRESH_SECONDS, self._read)
        self.call_after_refresh(self._read)

    def _read(self) -> None:
        log = self.query_one(RichLog)
        for text in self._tail.lines() if self._tail is not None else ():
            self._logbook.add("engine", text)
        self._seen, fresh = self._logbook.since(self._seen)
        muted = self.app.theme_variables["foreground-muted"]
        colors = {"native": "warning", "notice": "accent", "engine": "secondary"}
        for line in fresh:
            color = self.app.theme_variables[colors.get(line.source, "primary")]
            log.write(Text.assemble((f"{line.clock} ", muted), (f"{line.source:<7} ", color), line.text))
