"""Listeners that write: the answer to standard output, everything about it to standard error."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson

from engine.client.sanitize import one_line, visible
from engine.events import (
    EngineState,
    Event,
    ModelReady,
    Notice,
    PrefillProgress,
    RequestFinished,
    TokensCommitted,
)
from engine.view import ViewState

LEVELS = ("debug", "info", "warning", "error")

BeginLine = Callable[[], None]
"""Called before a line is written, to finish the one that an answer has begun on the same terminal."""


def same_terminal(one: TextIO, other: TextIO) -> bool:
    """Whether two streams end on one screen."""
    return one.isatty() and other.isatty() and os.path.sameopenfile(one.fileno(), other.fileno())


def nothing_begun() -> None:
    """A `BeginLine` for streams that no answer is written to."""


def print_wrapped(text: str, indent: int = 0) -> None:
    """Print a line of ours, broken between words at the width of the terminal; `indent` its further lines."""
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    print("\n".join(lines))


class AnswerWriter:
    """Streams the text of answers. On a terminal, control sequences of the model are shown, not obeyed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last = "\n"

    def __call__(self, event: Event, state: ViewState) -> None:
        if isinstance(event, TokensCommitted):
            self._write("".join(text for _, _, text in event.tokens) + event.tail)
        elif isinstance(event, RequestFinished):
            self.end_line()

    def end_line(self) -> None:
        """Go to the beginning of a line, unless there already."""
        if self._last != "\n":
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(visible(text) if self._is_terminal else text)
            self._stream.flush()
            self._last = text[-1]


class Progress:
    """One line on a terminal that says what is awaited; it is gone before anything else is written."""

    def __init__(self, stream: TextIO, begin_line: BeginLine = nothing_begun) -> None:
        self._stream = stream
        self._begin_line = begin_line
        self._enabled = stream.isatty()
        self._shown = False

    def __call__(self, event: Event, state: ViewState) -> None:
        if isinstance(event, EngineState) and event.state in ("starting", "loading", "recovering"):
            percent = f" {event.fraction:.0%}" if event.fraction >= 0 else ""
            self.show(f"{event.detail or event.state}{percent}")
        elif isinstance(event, PrefillProgress) and event.done < event.total:
            self.show(f"reading the prompt: {event.done} of {event.total} tokens")
        else:
            self.clear()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._enabled:
            self._begin_line()
            width = max(shutil.get_terminal_size().columns - 2, 10)
            self._stream.write(f"\r\x1b[K{one_line(text)[:width]}")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


class NoticePrinter:
    """Prints warnings and errors of the engine, one line each."""

    def __init__(self, stream: TextIO, program: str, begin_line: BeginLine = nothing_begun) -> None:
        self._stream = stream
        self._program = program
        self._begin_line = begin_line

    def __call__(self, event: Event, state: ViewState) -> None:
        if isinstance(event, ModelReady):
            for note in event.notes:
                self._print("note", note)
        elif isinstance(event, Notice) and event.level != "info":
            text = f"{event.message}; {event.hint}" if event.hint else event.message
            self._print("warning" if event.level == "warning" else "", text)

    def _print(self, kind: str, text: str) -> None:
        self._begin_line()
        prefix = f"{self._program}: {kind}: " if kind else f"{self._program}: "
        print(prefix + one_line(text), file=self._stream, flush=True)


class EventLog:
    """Every event of a level or above as one line: an object of JSON, or words for people."""

    def __init__(self, stream: TextIO, style: str, level: str, begin_line: BeginLine = nothing_begun) -> None:
        self._stream = stream
        self._begin_line = begin_line
        self._write = _json_line if style == "json" else _pretty_line
        self._least = LEVELS.index(level)

    def __call__(self, event: Event, state: ViewState) -> None:
        if LEVELS.index(_level_of(event)) >= self._least:
            self._begin_line()
            print(self._write(event), file=self._stream, flush=True)


def _level_of(event: Event) -> str:
    if isinstance(event, Notice):
        return event.level if event.level in LEVELS else "info"
    return "debug" if event.kind in ("window", "window-done", "tokens") else "info"


def _json_line(event: Event) -> str:
    return orjson.dumps(event.to_dict()).decode()


def _pretty_line(event: Event) -> str:
    data = event.to_dict()
    del data["kind"], data["at"]
    if isinstance(event, RequestFinished):  # the whole result holds the answer once more
        data = {**data, "result": "", **_figures(event.result.get("timings", {}))}
    values = " ".join(f"{name}={value}" for name, value in data.items() if value not in ("", (), {}))
    return one_line(f"{event.at:10.3f} {event.kind:<11} {values}")


def _figures(timings: Mapping[str, Any]) -> dict[str, str]:
    """The number of tokens of an answer and their rate, where known."""
    rate = timings.get("predicted_per_second")
    return {
        "tokens": str(timings.get("predicted_n", "")),
        "tok/s": f"{rate:.1f}" if rate else "",
    }
