"""Terminals that a test opens are closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.programs import PROMPT, Terminal

OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[OpenTerminal]:
    """Opens `skippy-prompt` with some arguments on a terminal of its own."""
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal([*PROMPT, *arguments], tmp_path))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()
