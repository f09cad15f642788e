"""The terminal: read with our own reading of keys, and left when it goes away.

Textual's driver never learns that a terminal is gone unless a signal says so. Without one (the window of a
multiplexer that was killed, a session of its own) it reads the end of its input without pause, and its writer
dies of the first thing that cannot be written; what waits for that writer then waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from codecs import getincrementaldecoder
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

from skippy_tui.keys import KeyParser

READ_BYTES = 4096
TICK_SECONDS = 0.1  # after which Esc is a key and not the beginning of one


class TerminalDriver(LinuxDriver):
    """Ends the app when its terminal is gone."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._file = cast("TextIO", Forgiving(self._file))

    def run_input_thread(self) -> None:
        """Read keys until the app ends, or the terminal does."""
        parser, decode = KeyParser(self._debug), getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(TICK_SECONDS):
                    data = _read(self.fileno)
                    if not data:
                        self._app.call_later(self._app.exit)
                        return
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)


def _read(descriptor: int) -> bytes:
    """What was typed; nothing if there is no terminal any more."""
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return b""


class Forgiving:
    """A text file. What cannot be written is dropped."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
