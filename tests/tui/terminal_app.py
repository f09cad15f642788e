"""The app with a scripted engine, as a program for a terminal: `terminal_app.py MODE LOG`.

Native code writes to both descriptors while the screen is up; then MODE decides: leave, crash, wait, hang (as
at a terminal that takes no more), or ask, which leaves once an answer that never ends has been stopped and a
text been written. With `engine` it waits as well, and its engine is a process.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

import skippy_tui.app
from engine.cli.errors import run_command
from engine.client.client import EngineClient, LocalEngine
from engine.config.plan import RunPlan
from skippy_tui.app import SkippyApp
from skippy_tui.feed import Client
from skippy_tui.launch import run_in_terminal
from skippy_tui.logbook import LogBook
from skippy_tui.scripted import ScriptedClient
from skippy_tui.store import Store
from skippy_tui.themes import load_themes, shipped_themes
from tests.cli.programs import FAKE_COMMAND


class NoisyApp(SkippyApp):
    """Writes from C once it is drawn, or once an answer has begun."""

    mode = ""
    noisy = False

    def on_mount(self) -> None:
        super().on_mount()
        self.set_timer(0.3, self.ask if self.mode == "ask" else self.make_noise)

    def ask(self) -> None:
        self.submit("a prompt")
        self.set_interval(0.05, self.watch_answer)

    def watch_answer(self) -> None:
        request = self.controller.feed.state.request
        if not self.noisy and request is not None and request.tokens:
            self.make_noise()
        elif self.noisy and not self.controller.busy and self.main.prompt.text:
            kept = self.controller.conversation.turns[-1]
            self.logbook.add("app", f"kept {len(kept.content) > 0}, written {self.main.prompt.text}")
            self.exit()

    def make_noise(self) -> None:
        self.noisy = True
        libc = ctypes.CDLL(None)
        for descriptor in (1, 2):
            line = f"torn by native code on {descriptor}\n".encode()
            libc.write(descriptor, line, len(line))
        if self.mode == "crash":
            raise RuntimeError("out of paper")
        if self.mode == "leave":
            self.exit()
        if self.mode == "hang":
            threading.Event().wait()


def client(mode: str, log: Path) -> Client:
    """An engine whose answers stop in their middle until they are cancelled, or a process."""
    if mode == "engine":
        return EngineClient(LocalEngine(RunPlan(), log, FAKE_COMMAND))
    return ScriptedClient(hold=lambda events: len(events) // 2)


def main() -> int:
    mode, log = sys.argv[1], Path(sys.argv[2])
    logbook = LogBook(log)
    store, themes = Store(":memory:"), load_themes([shipped_themes()])
    app = NoisyApp(
        RunPlan(),
        lambda plan: client(mode, log.with_name("engine.log")),
        store,
        themes,
        logbook=logbook,
    )
    app.mode = mode
    if mode == "hang":
        skippy_tui.app.ENDING_SECONDS = 0.1
    return run_command("skippy-tui", lambda: run_in_terminal(app, logbook))


if __name__ == "__main__":
    sys.exit(main())
