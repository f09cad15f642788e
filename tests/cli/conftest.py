"""Terminals of tests, closed after them, and `skippy-engine` called in the process of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.cli.main import main
from tests.cli.programs import PROMPT, Terminal, Tool, environment

OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[OpenTerminal]:
    """Opens `skippy-prompt` with some arguments on a terminal of its own, so many columns wide."""
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 100) -> Terminal:
        opened.append(Terminal([*PROMPT, *arguments], tmp_path, columns))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tool:
    """Calls `skippy-engine` in this process, at home in the test's own folder."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        written = capsys.readouterr()
        return code, written.out, written.err

    return call
