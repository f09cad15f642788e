"""Cutting a growing Markdown text into pieces that are drawn on their own.

Drawing a piece costs its length, so an answer of any length stays cheap if no piece grows beyond a bound.
Cuts are made between blocks; a block that is longer than a piece may be is cut at a line, and a fence or a
table is opened again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SOFT_LIMIT = 1_500  # characters after which the next empty line ends a piece
HARD_LIMIT = 2_500  # after which the next line does
CODE_LIMIT = 800  # after which the next line of code that is not indented does
COSTLY_LIMIT = 1_500  # after which the next line of a fence or a table does
LINE_LIMIT = 4_000  # after which a space does

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_TABLE_RULE = re.compile(r"^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$")


@dataclass(frozen=True, slots=True)
class Part:
    """Text for the piece that is open, or for a new one, which with `joined` goes on with a block."""

    text: str
    begins: bool = False
    joined: bool = False


class Pieces:
    """Feed text, get back what to append: to the piece that is open, or to a new one."""

    def __init__(self) -> None:
        self._length = 0
        self._line = ""
        self._fence = ""  # the line that opened the fence we are in
        self._table = ""  # the first two lines of the table we are in
        self._last_line = ""
        self._after_empty_line = False

    def feed(self, text: str) -> list[Part]:
        """What to append, in order. Drawn together, the parts show what was fed."""
        parts: list[Part] = []
        begins, joined, gathered = False, False, ""
        for line in text.splitlines(keepends=True) if "\n" in text else [text]:
            if self._may_cut(line):
                closing = f"{self._marker()}\n" if self._fence else ""
                parts.append(Part(gathered + closing, begins, joined))
                begins, joined = True, bool(self._fence) or not self._after_empty_line
                gathered = f"{self._fence}\n" if self._fence else self._table
                self._length = 0
            gathered += line
            self._take(line)
        parts.append(Part(gathered, begins, joined))
        return [part for part in parts if part.begins or part.text]

    def _may_cut(self, line: str) -> bool:
        """Whether a new piece should begin before this line, of which we may have only the beginning."""
        if self._line:
            return self._length > LINE_LIMIT and line.startswith((" ", "\n")) and not self._fence
        if self._length > (COSTLY_LIMIT if self._fence or self._table else HARD_LIMIT):
            return _FENCE.match(line) is None
        if self._fence:
            return self._length > CODE_LIMIT and line[:1] not in " \t`~"
        return self._length > SOFT_LIMIT and self._after_empty_line and line[:1].strip() != ""

    def _take(self, text: str) -> None:
        self._length += len(text)
        self._line += text
        if not text.endswith("\n"):
            return
        line, self._line = self._line.rstrip("\n"), ""
        self._after_empty_line = not line.strip()
        self._follow_table(line)
        match = _FENCE.match(line)
        if match is None:
            return
        if not self._fence:
            self._fence = line
        elif match[1].startswith(self._marker()) and not match[2].strip():
            self._fence = ""

    def _follow_table(self, line: str) -> None:
        if not self._fence and "|" in self._last_line and _TABLE_RULE.match(line):
            self._table = f"{self._last_line}\n{line}\n"
        elif "|" not in line:
            self._table = ""
        self._last_line = line

    def _marker(self) -> str:
        match = _FENCE.match(self._fence)
        return match[1] if match is not None else ""
