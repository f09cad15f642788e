"""The input line of the REPL: history, completion, and several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

QUOTES = '"""'


class CommandCompleter(Completer):
    """Completes `:commands` and their first argument; prompts are left alone."""

    def __init__(self, arguments_of: Callable[[], dict[str, Sequence[str]]]) -> None:
        self._arguments_of = arguments_of

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith(":"):
            return
        command, space, argument = text.partition(" ")
        known = self._arguments_of()
        words, begun = (known.get(command, ()), argument) if space else (list(known), command)
        for word in words:
            if word.startswith(begun):
                yield Completion(word, start_position=-len(begun))


class UniqueHistory(FileHistory):
    """A history file in which a line that is given twice in a row stands once."""

    def append_string(self, string: str) -> None:
        strings = self.get_strings()
        if not strings or strings[-1] != string:
            super().append_string(string)


def edit_session(history: Path, arguments_of: Callable[[], dict[str, Sequence[str]]]) -> PromptSession[str]:
    """Enter sends, Alt+Enter begins a line, and so does Enter after an open triple quote."""
    history.parent.mkdir(parents=True, exist_ok=True)
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=UniqueHistory(str(history)),
        completer=CommandCompleter(arguments_of),
        key_bindings=bindings,
        multiline=True,
        prompt_continuation="  ",
        complete_while_typing=False,
    )


def is_open(text: str) -> bool:
    """Whether a text begins with triple quotes that are not closed yet."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) < 2


def unquoted(text: str) -> str:
    """The text that was typed, without the triple quotes around it."""
    stripped = text.strip()
    if stripped.startswith(QUOTES) and stripped.endswith(QUOTES) and len(stripped) >= 2 * len(QUOTES):
        return stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return stripped
