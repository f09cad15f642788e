"""Output of native code, caught before it tears the screen.

llama.cpp and other libraries write to file descriptors 1 and 2 from C, past everything that Python redirects.
While `NativeOutput` is entered, both descriptors lead into a pipe whose lines go to the log; the app itself
draws on a private copy of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

_OUTPUT, _ERROR = 1, 2


class NativeOutput:
    """Leads descriptors 1 and 2 to `on_line`, which is called from a thread of our own."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._kept: dict[int, int] = {}
        self._streams = (sys.__stdout__, sys.__stderr__)
        self._terminal: TextIO | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = _ERROR if os.isatty(_ERROR) else _OUTPUT
        self._terminal = os.fdopen(os.dup(terminal), "w", encoding="utf-8", errors="replace")
        self._kept = {number: os.dup(number) for number in (_OUTPUT, _ERROR)}
        reading, writing = os.pipe()
        for number in (_OUTPUT, _ERROR):
            os.dup2(writing, number)
        os.close(writing)
        # Textual draws on the one and asks the other for its size.
        sys.__stdout__ = sys.__stderr__ = self._terminal  # type: ignore[misc]
        self._reader = threading.Thread(target=self._read, args=(reading,), name="native-output", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        for number, kept in self._kept.items():
            os.dup2(kept, number)  # the last writers of the pipe are gone, so the reader ends
            os.close(kept)
        if self._reader is not None:
            self._reader.join(timeout=1.0)
        if self._terminal is not None:
            with contextlib.suppress(OSError):  # it may be gone
                self._terminal.close()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as pipe:
            for line in pipe:
                self._on_line(line.rstrip("\r\n"))
