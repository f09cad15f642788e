"""The app with a scripted engine, as a program for a terminal: `terminal_app.py MODE LOG`.

Native code writes to both descriptors while the screen is up; then MODE decides: leave, crash, wait, or ask,
which leaves once an answer that never ends has been stopped and a text been written.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from engine.cli.errors import run_command
from engine.config.plan import RunPlan
from skippy_tui.app import SkippyApp
from skippy_tui.launch import run_in_terminal
from skippy_tui.logbook import LogBook
from skippy_tui.scripted import ScriptedClient
from skippy_tui.store import Store
from skippy_tui.themes import load_themes, shipped_themes


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


def client() -> ScriptedClient:
    """An engine whose answers stop in their middle until they are cancelled."""
    return ScriptedClient(hold=lambda events: len(events) // 2)


def main() -> int:
    mode, log = sys.argv[1], Path(sys.argv[2])
    logbook = LogBook(log)
    store, themes = Store(":memory:"), load_themes([shipped_themes()])
    app = NoisyApp(
        RunPlan(),
        lambda plan: ScriptedClient(hold=lambda events: len(events) // 2),
        store,
        themes,
        logbook=logbook,
    )
    app.mode = mode
    return run_command("skippy-tui", lambda: run_in_terminal(app, logbook))


if __name__ == "__main__":
    sys.exit(main())
