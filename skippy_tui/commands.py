"""The one table of actions. Slash commands, keys, the footer, the palette and the help are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

from engine.config.plan import STRATEGIES
from engine.config.settings import SETTINGS, nearest
from engine.errors import UsageError
from skippy_tui import actions
from skippy_tui.settings import choices_of
from skippy_tui.widgets.prompt import Suggestion

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp

Run = Callable[["SkippyApp", str], Awaitable[None]]
Choices = Callable[["SkippyApp"], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the app can do: `/name argument`, a key, an entry of the palette and a line of the help."""

    name: str
    group: str
    help: str
    run: Run
    key: str = ""
    footer: str = ""  # the word in the footer; empty: not shown there
    argument: str = ""  # how it is written in the help; in brackets when it may be left out
    choices: Choices | None = None

    @property
    def needs_argument(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")

    @property
    def usage(self) -> str:
        """`/name ARGUMENT`."""
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def key_shown(self) -> str:
        """The key as people write it."""
        return "+".join(part.capitalize() for part in self.key.replace("escape", "esc").split("+"))

    def binding(self) -> Binding:
        """The key as Textual takes it."""
        return Binding(
            self.key,
            f"app.command('{self.name}')",
            self.footer or self.help,
            show=bool(self.footer),
            priority=self.key != "escape",  # a text area has other uses for some of these keys
            key_display=self.key_shown.replace("Ctrl+", "^"),
        )


def _strategies(app: SkippyApp) -> Sequence[str]:
    return STRATEGIES


def _themes(app: SkippyApp) -> Sequence[str]:
    return list(app.themes.themes)


def _models(app: SkippyApp) -> Sequence[str]:
    return ("demo",)


def _settings(app: SkippyApp) -> Sequence[str]:
    return list(SETTINGS)


def _formats(app: SkippyApp) -> Sequence[str]:
    return actions.EXPORTS


ASK, ANSWER, CHATS, SETTING, VIEW = "Asking", "Answers", "Chats", "Settings", "View"

_TABLE = (
    Command("stop", ASK, "stop the answer, keep what there is", actions.stop, "escape", "stop"),
    Command("retry", ASK, "ask again for the last answer", actions.retry, "f5"),
    Command("edit", ASK, "edit the last prompt and ask again", actions.edit, "f6"),
    Command("history", ASK, "search earlier prompts", actions.history, "ctrl+r"),
    Command("copy", ANSWER, "copy the last answer", actions.copy, "f7"),
    Command("code", ANSWER, "copy the last code block", actions.copy_code, "f8"),
    Command("save", ANSWER, "write the last answer to a file", actions.save, argument="FILE"),
    Command("stats", ANSWER, "all figures of the last answer", actions.stats),
    Command(
        "compare",
        ANSWER,
        "plain and with speculation, side by side",
        actions.compare,
        "f4",
        argument="[PROMPT]",
    ),
    Command("new", CHATS, "begin another chat", actions.new, "ctrl+n"),
    Command("chats", CHATS, "find, resume, rename and delete chats", actions.chats, "f3", argument="[WORDS]"),
    Command("rename", CHATS, "give this chat another title", actions.rename, argument="TITLE"),
    Command(
        "export",
        CHATS,
        "write this chat as markdown or json",
        actions.export,
        argument="[FORMAT] [FILE]",
        choices=_formats,
    ),
    Command("clear", CHATS, "forget the turns of this chat", actions.clear),
    Command("system", CHATS, "set the system message of this chat", actions.system, argument="[TEXT]"),
    Command("settings", SETTING, "see and change every setting", actions.show_settings, "f2", "settings"),
    Command(
        "strategy",
        SETTING,
        "where drafts come from",
        actions.strategy,
        "ctrl+s",
        argument="[NAME]",
        choices=_strategies,
    ),
    Command("width", SETTING, "least and most drafts of a window", actions.width, argument="[MIN] MAX"),
    Command("depth", SETTING, "most windows in flight", actions.setter("pipeline_depth"), argument="N"),
    Command("temperature", SETTING, "0 is greedy", actions.setter("temperature"), argument="X"),
    Command("seed", SETTING, "the same seed gives the same text", actions.setter("seed"), argument="N"),
    Command(
        "rtt", SETTING, "delay every link by this round trip", actions.setter("emulate_rtt_ms"), argument="MS"
    ),
    Command(
        "model", SETTING, "run another model", actions.setter("model"), argument="NAME|FILE", choices=_models
    ),
    Command("set", SETTING, "change any setting", actions.set_any, argument="NAME VALUE", choices=_settings),
    Command("theme", SETTING, "another theme", actions.theme, "f9", argument="[NAME]", choices=_themes),
    Command("tokens", VIEW, "the answer as text or as tokens", actions.tokens, "ctrl+t", "tokens"),
    Command("rejects", VIEW, "drafts that were rejected, and why", actions.rejects, "ctrl+o", "rejects"),
    Command("panels", VIEW, "show or hide the panels", actions.panels, "ctrl+g", "panels"),
    Command("log", VIEW, "native output, notices, the engine's log", actions.log, "f12"),
    Command("help", VIEW, "help for what has the focus, and all commands", actions.show_help, "f1", "help"),
    Command("palette", VIEW, "find every action", actions.palette, "ctrl+p", "palette"),
    Command("quit", VIEW, "leave", actions.leave, "ctrl+q", "quit"),
)

COMMANDS: dict[str, Command] = {command.name: command for command in _TABLE}


def bindings() -> list[Binding]:
    """The keys of the table."""
    return [command.binding() for command in _TABLE if command.key]


def parse(line: str) -> tuple[Command, str]:
    """The command and the argument of a slash line. Raises UsageError naming the nearest command."""
    name, _, argument = line.lstrip("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no command /{name}", hint=nearest(name, COMMANDS))
    argument = argument.strip()
    if command.needs_argument and not argument:
        raise UsageError(f"/{name} needs an argument", hint=f"{command.usage}: {command.help}")
    return command, argument


def suggestions(app: SkippyApp, text: str) -> list[Suggestion]:
    """What a slash line that is being written may become."""
    if not text.startswith("/") or "\n" in text:
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            Suggestion(
                f"/{command.name}",
                f"{command.argument}  {command.help}".strip(),
                complete=not command.needs_argument,
                more=bool(command.argument),
            )
            for command in _TABLE
            if command.name.startswith(name)
        ]
    command = COMMANDS.get(name)
    if command is None or command.choices is None:
        return []
    first, second_space, second = argument.partition(" ")
    if name == "set" and second_space and first in SETTINGS:
        return _whole(f"/set {first}", choices_of(first), second, "")
    if second_space:
        return []
    if name == "set":
        return [
            Suggestion(f"/set {word}", SETTINGS[word].help, complete=False, more=True)
            for word in command.choices(app)
            if word.startswith(first)
        ]
    return _whole(f"/{name}", command.choices(app), first, command.help)


def _whole(before: str, words: Sequence[str], begun: str, text: str) -> list[Suggestion]:
    found = [word for word in words if word.startswith(begun)]
    if found == [begun]:
        return []
    return [Suggestion(f"{before} {word}", text, True) for word in found]
