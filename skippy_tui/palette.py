"""Ctrl+P: every command, and every choice of those that take one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from skippy_tui.commands import COMMANDS

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp

# Their choices are entries of their own.
_SPREAD = ("strategy", "theme")


class ActionProvider(Provider):
    """The table of commands, as Textual's palette wants it."""

    async def discover(self) -> Hits:
        for text, help_text, name, argument in self._entries():
            if not argument:
                yield DiscoveryHit(text, partial(self._run, name, argument), help=help_text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for text, help_text, name, argument in self._entries():
            score = max(matcher.match(text), 0.9 * matcher.match(help_text))
            if score > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, name, argument), help=help_text)

    def _entries(self) -> Iterator[tuple[str, str, str, str]]:
        """(text, help, command, argument)."""
        for command in COMMANDS.values():
            if command.name == "palette":
                continue
            key = f"   {command.key_shown}" if command.key else ""
            yield f"{command.name}{key}", command.help, command.name, ""
            if command.name in _SPREAD and command.choices is not None:
                for choice in command.choices(self._app):
                    yield f"{command.name} {choice}", command.help, command.name, choice

    def _run(self, name: str, argument: str) -> None:
        self._app.run_command(name, argument)

    @property
    def _app(self) -> SkippyApp:
        return self.app  # type: ignore[return-value]
