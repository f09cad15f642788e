"""The `:commands` of the REPL."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from engine.cli.output import print_wrapped
from engine.client.sanitize import one_line
from engine.config.plan import STRATEGIES
from engine.config.resolve import LIVE_TABLES
from engine.config.settings import SETTINGS, nearest, settings_of, value_of
from engine.errors import SkippyError, UsageError
from engine.model.paths import log_dir

if TYPE_CHECKING:
    from engine.cli.repl import Repl

HISTORY_SHOWN = 20
LOG_LINES = 20
LOG_BYTES = 256 << 10  # of the end of a log, in which its last lines are looked for

_JSON_TEXT = r'("(?:[^"\\]|\\.)*")'
_PROMPT_JSON = re.compile(rf"(?:{_JSON_TEXT}\s+)?{_JSON_TEXT}")


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
        print_wrapped(f"{usage:<{width}}  {text}", width + 2)
    print_wrapped('Alt+Enter begins a new line, and so does Enter after """. Ctrl+C stops an answer.')


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


async def _append(repl: Repl, argument: str) -> None:
    repl.appends = True
    print("prompts continue the chat")


async def _noappend(repl: Repl, argument: str) -> None:
    repl.appends = False
    repl.begin_chat()
    print("every prompt begins a new chat")


async def _prompt_json(repl: Repl, argument: str) -> None:
    wrong = UsageError(
        ":prompt-json needs a prompt as a JSON text, or a session and a prompt",
        hint='e.g. :prompt-json "first" "one line\\nand another"',
    )
    match = _PROMPT_JSON.fullmatch(argument)
    if match is None:
        raise wrong
    try:
        session, prompt = (orjson.loads(text or '""') for text in match.groups())
    except orjson.JSONDecodeError:
        raise wrong from None
    await repl.ask(prompt, session)


async def _save(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError(":save needs a file name")
    if "text" not in repl.result:
        raise SkippyError("there is no answer yet", hint="ask something first")
    path = Path(argument).expanduser()
    try:
        path.write_text(str(repl.result["text"]), encoding="utf-8")
    except OSError as error:
        raise SkippyError(f"cannot write {path}: {error.strerror or error}") from error
    print(f"the last answer is in {path}")


async def _logs(repl: Repl, argument: str) -> None:
    words = argument.split()
    count = int(words.pop()) if words and words[-1].isdecimal() else LOG_LINES
    known = sorted(path.stem for path in log_dir().glob("*.log"))
    name = words[0] if words else "engine"
    if name not in known or len(words) > 1:
        raise UsageError(f"there is no log {' '.join(words) or name}", hint=nearest(name, known))
    with (log_dir() / f"{name}.log").open("rb") as file:
        file.seek(max(file.seek(0, 2) - LOG_BYTES, 0))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in lines[max(len(lines) - count, 0) :]:
        print(one_line(line))


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
    ":append": Command("", "prompts continue the chat (as at the start)", _append),
    ":noappend": Command("", "every prompt begins a new chat", _noappend),
    ":history": Command("", "the last prompts, numbered", _history),
    ":rerun": Command("N", "ask prompt N again, in a new chat", _rerun),
    ":prompt-json": Command(
        '["SESSION"] "PROMPT"', "ask a prompt written as a JSON text, in a chat of that name", _prompt_json
    ),
    ":save": Command("FILE", "write the last answer to a file", _save),
    ":logs": Command("[NAME] [LINES]", "the end of a log of an engine or a stage", _logs),
}


def arguments_of() -> dict[str, Sequence[str]]:
    """Every command with the words that may follow it."""
    return {":quit": (), **{name: command.words for name, command in COMMANDS.items()}}
