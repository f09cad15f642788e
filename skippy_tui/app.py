"""The application: one engine feed, one controller, screens."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.events import Event, Key
from textual.notifications import Notification, Notify, SeverityLevel
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, TextArea
from textual.widgets._toast import ToastRack

from engine.client.sanitize import one_line
from engine.config.plan import RunPlan
from engine.config.settings import nearest
from engine.config.ui import UiPlan
from engine.errors import EXIT_INTERRUPTED, SkippyError
from engine.events import Notice
from engine.timeouts import TIMEOUTS
from skippy_tui.commands import COMMANDS, parse
from skippy_tui.controller import Controller
from skippy_tui.feed import Client
from skippy_tui.keys import pressed
from skippy_tui.logbook import LogBook
from skippy_tui.markdown import Look
from skippy_tui.palette import ActionProvider
from skippy_tui.screens.main import MainScreen
from skippy_tui.store import Store
from skippy_tui.terminal import TerminalDriver
from skippy_tui.themes import DEFAULT_THEME, Themes

T = TypeVar("T")

TOASTS_KEPT = 3  # the newest; what others said stands in the log
TWICE_SECONDS = 2.0  # between the two presses of Ctrl+C that leave
ENDING_SECONDS = 2 * TIMEOUTS.engine_stop  # after a signal, for what is left to do
SEVERITIES: dict[str, SeverityLevel] = {"info": "information", "warning": "warning", "error": "error"}


class SkippyApp(App[None]):
    """`connect` makes a client of an engine for a plan. Tests bring their own, and their own clock."""

    TITLE = "skippy"
    CSS_PATH = Path(__file__).with_name("skippy.tcss")
    COMMANDS = {ActionProvider}  # noqa: RUF012 - the type that Textual gives it
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        plan: RunPlan,
        connect: Callable[[RunPlan], Client],
        store: Store,
        themes: Themes,
        *,
        logbook: LogBook | None = None,
        engine_log: Path | None = None,
        ui: UiPlan | None = None,
        attached: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.themes = themes
        super().__init__(driver_class=TerminalDriver)
        self.logbook = logbook or LogBook()
        self.engine_log = engine_log
        self.controller = Controller(plan, connect, store, clock, attached=attached)
        self.fault: Exception | None = None  # what ended the app, if it did not end by itself
        self._clock = clock
        self._ui = ui or UiPlan()
        self._look: tuple[str, Look] | None = None
        self._last_notice: Notice | None = None
        self._interrupted_at = -TWICE_SECONDS
        self.main = MainScreen(self.controller, self._age, clock, self._ui)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Variables of ours in themes that are not."""
        return {
            "origin-target": "#e0e0e0",
            "origin-mtp": "#5fafd7",
            "origin-ngram": "#87af5f",
            "origin-draft": "#af87d7",
            "origin-correction": "#d75f5f",
            "origin-free": "#d7af5f",
            "track": "#303030",
            "edge": "#4a4a4a",
            "window-even": "#5fafd7",
            "window-odd": "#3a7ca5",
        }

    @property
    def look(self) -> Look:
        """How Markdown looks in the present theme."""
        if self._look is None or self._look[0] != self.theme:
            self._look = (self.theme, Look(self.theme_variables, dark=self.current_theme.dark))
        return self._look[1]

    def on_mount(self) -> None:
        for theme in self.themes.themes.values():
            self.register_theme(theme)
        self.theme = self._first_theme()
        self.controller.view = self.main.chat
        self.controller.on_store_fault = lambda error: self.say(str(error), "error")
        self.push_screen(self.main)
        self.main.prompt.remember(self.controller.store.prompts())
        for fault in self.themes.faults:
            self.say(fault, "warning")
        self.controller.feed.start()
        self._end_on_signals()
        self.set_interval(0.2, self.show_notices)

    def _end_on_signals(self) -> None:
        """A terminal that is closed, or a polite kill, ends us as the quit command does.

        These are no handlers of the event loop: it may be waiting for a terminal that takes no more.
        """
        loop = asyncio.get_running_loop()

        def end(number: int, frame: object) -> None:
            loop.call_soon_threadsafe(self.exit)
            # An engine of ours ends by itself, as soon as it cannot read from us.
            last_resort = threading.Timer(ENDING_SECONDS, os._exit, (128 + number,))
            last_resort.daemon = True
            last_resort.start()

        if threading.current_thread() is threading.main_thread() and not self.is_headless:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, end)

    def _first_theme(self) -> str:
        wanted = self._ui.theme or self.controller.store.preference("theme", DEFAULT_THEME)
        if wanted in self.themes.themes:
            return wanted
        if self._ui.theme:
            self.say(f"there is no theme {wanted}; {nearest(wanted, self.themes.themes)}", "warning")
        return next(iter(self.themes.themes), "textual-dark")

    async def on_unmount(self) -> None:
        await self.controller.close()

    def _handle_exception(self, error: Exception) -> None:
        """Keep what ended us: it is told once the terminal is itself again."""
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        """A fault is one line on standard error and a record in a file, never a page of traceback."""
        self._exit_renderables.clear()

    async def on_event(self, event: Event) -> None:
        """Before Textual looks for bindings: tell Esc and a key from Alt with that key."""
        if isinstance(event, Key) and not event.is_forwarded:
            for key in pressed(event, writing=self._is_writing()):
                await super().on_event(key)
        else:
            await super().on_event(event)

    def _is_writing(self) -> bool:
        """Whether what has the focus holds a text that can be moved in."""
        match self.focused:
            case TextArea() as area:
                return bool(area.text)
            case Input() as field:
                return bool(field.value)
        return False

    # -- talking to people -----------------------------------------------------------------------------

    def say(self, text: str, severity: str = "info") -> None:
        """A line that goes away by itself, and stays in the log."""
        self.logbook.add("app", text)
        self._toast(text, severity)

    def _toast(self, text: str, severity: str) -> None:
        seconds = 4 if severity == "info" else 8
        self.notify(one_line(text), severity=SEVERITIES[severity], timeout=seconds, markup=False)

    def _on_notify(self, event: Notify) -> None:
        """Before Textual shows one more: what says the same goes, or the oldest of too many."""
        others = list(self._notifications)
        again = [one for one in others if one.message == event.notification.message]
        kept = 1 if isinstance(self.screen, ModalScreen) else TOASTS_KEPT  # there is one line above a dialog
        for gone in again or others[: max(len(others) - kept + 1, 0)]:
            self._remove_toast(gone)

    def _remove_toast(self, notification: Notification) -> None:
        self._unnotify(notification, refresh=False)
        for screen in self.screen_stack:  # each shows it in a rack of its own
            for holder in screen.get_child_by_type(ToastRack).children:
                if holder.id == ToastRack._toast_id(notification):
                    holder.remove()

    def show_notices(self) -> None:
        """Tell notices of the engine that have not been told."""
        notices = self.controller.feed.state.notices
        fresh: list[Notice] = []
        for notice in reversed(notices):
            if notice is self._last_notice:
                break
            fresh.append(notice)
        self._last_notice = notices[-1] if notices else None
        for notice in reversed(fresh):
            text = str(SkippyError(notice.message, hint=notice.hint))
            self.logbook.add("notice", f"{notice.level}: {text}")
            # Errors of an answer, and of an engine that a change began, stand in the chat.
            in_chat = self.controller.busy or self.controller.changing
            if notice.level == "warning" or (notice.level == "error" and not in_chat):
                self._toast(text, notice.level)

    def _age(self, moment: float) -> float:
        """Seconds since a moment of the engine's clock."""
        return self._clock() - moment - (self.controller.feed.clock_offset or 0.0)

    def leave_when_pressed_twice(self) -> None:
        """Ctrl+C with nothing to stop."""
        now = self._clock()
        if now - self._interrupted_at < TWICE_SECONDS:
            self.exit(return_code=EXIT_INTERRUPTED)
            return
        self._interrupted_at = now
        self.say("Ctrl+C again leaves")

    # -- commands --------------------------------------------------------------------------------------

    def submit(self, text: str) -> None:
        """What was written in the prompt: a command, or something to ask."""
        if text.startswith("/") and not text.startswith("//"):
            try:
                command, argument = parse(text)
            except SkippyError as error:
                self.say(str(error), "error")
                self.main.prompt.give_back(text)
                return
            self.run_command(command.name, argument)
        else:
            self.run_worker(self._ask(text))

    async def _ask(self, text: str) -> None:
        try:
            await self.controller.ask(text.removeprefix("/") if text.startswith("//") else text)
        except SkippyError as error:
            self.say(str(error), "warning")
            self.main.prompt.give_back(text)
        else:
            self.main.prompt.end_edit()

    def action_command(self, name: str) -> None:
        """A key or the palette."""
        self.run_command(name)

    def run_command(self, name: str, argument: str = "") -> None:
        """Run a command of the table; what goes wrong is one line."""
        self.run_worker(self._run(name, argument))

    async def _run(self, name: str, argument: str) -> None:
        command = COMMANDS[name]
        if command.needs_argument and not argument:
            self.main.prompt.set_text(f"/{name} ")
            self.main.prompt.focus()
            return
        try:
            await command.run(self, argument)
        except SkippyError as error:
            self.say(str(error), "error")

    async def ask_screen(self, screen: Screen[T]) -> T | None:
        """Show a screen above this one and wait for what it returns. Only from a worker."""
        return await self.push_screen_wait(screen)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette holds our commands only."""
        return ()
