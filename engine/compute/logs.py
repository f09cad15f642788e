"""llama.cpp's log lines, taken from file descriptor 2 and given to Python's logging as `skippy.llama`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("skippy.llama")

# ggml's levels (ggml.h): 0 none, 1 debug, 2 info, 3 warning, 4 error, 5 goes on in the same line.
_ERROR = 4
_CONTINUE = 5
# llama.cpp tells at level "info" what we only want when debugging, and warns of what slices are made of.
_LEVELS = {2: logging.DEBUG, 3: logging.INFO, _ERROR: logging.ERROR}


class LogSink:
    """Joins the pieces of llama.cpp's log to lines, logs them, and shows errors to whoever collects them."""

    def __init__(self) -> None:
        self._line = ""
        self._level = 0
        self._collectors: list[list[str]] = []

    def write(self, level: int, text: bytes | None, _user_data: Any = None) -> None:
        """llama.cpp's log callback. Must not raise: it is called from C."""
        if level != _CONTINUE:
            self._level = level
        self._line += (text or b"").decode("utf-8", "replace")
        *lines, self._line = self._line.split("\n")
        for line in lines:
            if line.strip():
                self._emit(line.strip())

    @contextmanager
    def errors(self) -> Iterator[list[str]]:
        """Collect the error lines that are logged inside the block (by any thread)."""
        collected: list[str] = []
        self._collectors.append(collected)
        try:
            yield collected
        finally:
            self._collectors.remove(collected)

    def _emit(self, line: str) -> None:
        if self._level == _ERROR:
            for collected in self._collectors:
                collected.append(line)
        log.log(_LEVELS.get(self._level, logging.DEBUG), "%s", line)


SINK = LogSink()


def reason(errors: list[str]) -> str:
    """The first of several error lines, without the name of the C function that logged it."""
    if not errors:
        return "llama.cpp gave no reason"
    function, separator, text = errors[0].partition(": ")
    return text if separator and " " not in function else errors[0]
