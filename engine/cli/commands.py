"""The `:commands` of the REPL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.client.sanitize import one_line
from engine.config.plan import STRATEGIES
from engine.config.resolve import LIVE_TABLES
from engine.config.settings import SETTINGS, nearest, settings_of, value_of
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.cli.repl import Repl

HISTORY_SHOWN = 20


@dataclass(frozen=True)
class Command:
    """`run` gets the REPL and what stands after the name."""

    arguments: str
    help: str
    run: Callable[[Repl, str], Awaitable[None]]
    words: Sequence[str] = ()  # completions of the first argument


async def _help(repl: Repl, argument: str) -> None:
    usages = {f"{name} {command.arguments}".strip(): command.help for name, command in COMMANDS.items()}
    usages[":quit"] = "leave, as Ctrl+D does"
    width = max(map(len, usages))
    for usage, text in usages.items():
        print(f"{usage:<{width}}  {text}")
    print('Alt+Enter begins a new line, and so does Enter after """. Ctrl+C stops an answer.')


async def _stats(repl: Repl, argument: str) -> None:
    repl.show_stats()
    totals = repl.session.state.totals
    print(
        f"so far: {totals.requests} answers of {totals.tokens} tokens, "
        f"{totals.reused_tokens} of {totals.prompt_tokens} prompt tokens reused, "
        f"{totals.drafts.accepted} of {totals.drafts.proposed} drafts right"
    )


async def _strategy(repl: Repl, argument: str) -> None:
    if argument:
        await repl.change({"strategy": argument})
    print(f"strategy {repl.plan.speculation.strategy}")


async def _set(repl: Repl, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    live = {setting.name: setting for table in LIVE_TABLES for setting in settings_of(table)}
    if value.strip():
        await repl.change({name: value.strip()})
    elif name and name not in live:
        raise UsageError(f"there is no setting {name!r} to change here", hint=nearest(name, live))
    for setting in live.values() if not name else [live[name]]:
        print(f"{setting.name} = {one_line(str(value_of(repl.plan, setting)))}")


async def _clear(repl: Repl, argument: str) -> None:
    repl.begin_chat()
    print("a new chat")


async def _system(repl: Repl, argument: str) -> None:
    if argument:
        await repl.change({"system": "" if argument == "none" else argument})
        repl.begin_chat()
    print(f"system message: {repl.plan.generation.system or 'none'}")


async def _history(repl: Repl, argument: str) -> None:
    first = max(len(repl.prompts) - HISTORY_SHOWN, 0)
    for number, prompt in enumerate(repl.prompts[first:], start=first + 1):
        print(f"{number:>4}  {one_line(prompt)}")


async def _rerun(repl: Repl, argument: str) -> None:
    if not argument.isdigit() or not 1 <= int(argument) <= len(repl.prompts):
        raise UsageError(f":rerun needs a number from 1 to {len(repl.prompts)}", hint=":history shows them")
    repl.begin_chat()
    await repl.ask(repl.prompts[int(argument) - 1])


COMMANDS: Mapping[str, Command] = {
    ":help": Command("", "this list", _help),
    ":stats": Command("", "figures of the last answer and of all", _stats),
    ":strategy": Command("[NAME]", "show or change where drafts come from", _strategy, STRATEGIES),
    ":set": Command(
        "[NAME [VALUE]]",
        "show or change settings of answers and of speculation",
        _set,
        [setting.name for setting in SETTINGS.values() if setting.table in LIVE_TABLES],
    ),
    ":system": Command("[TEXT|none]", "show or change the system message; begins a new chat", _system),
    ":clear": Command("", "begin a new chat", _clear),
    ":history": Command("", "the last prompts, numbered", _history),
    ":rerun": Command("N", "ask prompt N again, in a new chat", _rerun),
}


def arguments_of() -> dict[str, Sequence[str]]:
    """Every command with the words that may follow it."""
    return {":quit": (), **{name: command.words for name, command in COMMANDS.items()}}
