"""The REPL of `skippy-prompt`: one chat, whose turns share what the caches hold already."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from prompt_toolkit import PromptSession

from engine.cli.commands import COMMANDS, arguments_of
from engine.cli.editing import edit_session, unquoted
from engine.cli.errors import Interrupted, print_error
from engine.cli.interrupts import Interrupts
from engine.cli.output import AnswerWriter, print_wrapped
from engine.cli.report import node_line, stats_lines
from engine.cli.session import Session
from engine.cli.setup import FrontEnd, request_of
from engine.client.sanitize import one_line, visible
from engine.config.plan import RunPlan
from engine.config.resolve import with_settings
from engine.config.settings import nearest
from engine.errors import EXIT_INTERRUPTED, EXIT_OK, EngineLost, SkippyError, UsageError
from engine.model.paths import data_dir
from engine.view import Request

HISTORY_FILE = "prompt-history"
QUITS = (":quit", ":q", ":exit")


@dataclass
class Chat:
    """The turns so far. `session` names what the engine's caches hold for them."""

    messages: list[dict[str, str]] = field(default_factory=list)
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


async def run_repl(front_end: FrontEnd) -> int:
    """Talk until `:quit`, Ctrl+D or a second Ctrl+C; returns the exit code."""
    interrupts = Interrupts()
    writer = AnswerWriter(sys.stdout)
    session = front_end.session(interrupts, writer)
    repl = Repl(front_end, session, interrupts, writer)
    try:
        with interrupts:
            await session.open()
        repl.greet()
        return await repl.run()
    finally:
        await session.client.close()


class Repl:
    """Reads lines, obeys commands, asks the rest."""

    def __init__(
        self, front_end: FrontEnd, session: Session, interrupts: Interrupts, writer: AnswerWriter
    ) -> None:
        self.plan: RunPlan = front_end.plan
        self.session = session
        self.chat = Chat()
        self.appends = True  # whether a prompt continues the chat
        self._named: dict[str, Chat] = {}  # chats of `:prompt-json`
        self.result: Mapping[str, Any] = {}
        self._program = front_end.program
        self._interrupts = interrupts
        self._writer = writer
        self._engine_lost = False
        self._edit: PromptSession[str] = edit_session(data_dir() / HISTORY_FILE, arguments_of)
        self.prompts = [
            line for line in reversed(list(self._edit.history.load_history_strings())) if line[:1] != ":"
        ]

    def greet(self) -> None:
        """What answers here: a line for the model, and one for each node."""
        model, stages = self.session.state.model, self.session.state.stages
        if model is not None:
            exact = ", exact" if model.exact else ""
            layers = f"{model.layers} layers in {len(stages)} stages, context {model.context}"
            strategy = f"strategy {self.plan.speculation.strategy}{exact}"
            print_wrapped(f"{one_line(model.name)}: {layers}, {strategy}. :help lists the commands.")
        for node in self.session.state.nodes.values():
            print_wrapped(f"node {one_line(node_line(node))}", len("node "))

    async def run(self) -> int:
        """Until the person leaves."""
        interrupted = False
        while True:
            try:
                line = await self._edit.prompt_async("> ")
            except EOFError:
                return EXIT_OK
            except KeyboardInterrupt:
                if interrupted:
                    return EXIT_INTERRUPTED
                print("Ctrl+C again or :quit leaves")
                interrupted = True
                continue
            interrupted = False
            text = unquoted(line)
            if text in QUITS:
                return EXIT_OK
            try:
                await self._obey(text)
            except Interrupted:
                print("interrupted")
            except SkippyError as error:
                self._engine_lost |= isinstance(error, EngineLost)
                print_error(self._program, str(error))

    async def _obey(self, text: str) -> None:
        name, *rest = text.split(maxsplit=1) or [""]
        if name.startswith(":"):
            command = COMMANDS.get(name)
            if command is None:
                raise SkippyError(f"there is no command {name}", hint=nearest(name, [*COMMANDS, *QUITS]))
            await command.run(self, rest[0] if rest else "")
        elif name.startswith("/") and (meant := f":{name[1:]}") in [*COMMANDS, *QUITS]:
            raise UsageError("commands begin with : here", hint=f"type {meant}")
        elif text:
            self.prompts.append(text)
            await self.ask(text)

    async def ask(self, text: str, name: str = "") -> None:
        """One turn of the chat, or of the one with this name.

        What fails is not part of it; what is stopped is, with the partial answer.
        """
        if not self.appends:
            self.begin_chat()
        chat = self._named.setdefault(name, Chat(session=name)) if name else self.chat
        turn = [*chat.messages, {"role": "user", "content": text}]
        request = request_of(self.plan, turn, chat.session)
        with self._interrupts:
            if self._engine_lost:
                await self.session.open()
                await self.session.client.set_values(asdict(self.plan.speculation))
                self._engine_lost = False
            try:
                answered = await self.session.answer(request)
            finally:
                self._writer.end_line()
        if answered is not None:
            self._take(chat, turn, answered)

    def show_stats(self) -> None:
        """The figures of the last answer."""
        for line in stats_lines(self.result, self.session.state.nodes.values()):
            print(visible(line))

    async def change(self, values: Mapping[str, Any]) -> None:
        """Use other settings from the next answer on; values by name, as texts."""
        plan = with_settings(self.plan, values)
        changed = plan.speculation != self.plan.speculation
        self.plan = plan
        if changed and not self._engine_lost:
            await self.session.client.set_values(asdict(plan.speculation))

    def begin_chat(self) -> None:
        """Forget all turns."""
        self.chat = Chat()
        self._named.clear()

    def _take(self, chat: Chat, turn: list[dict[str, str]], answered: Request) -> None:
        finished = answered.finished
        if finished is None or finished.finish_reason == "error":
            return
        if answered.text:
            chat.messages = [*turn, {"role": "assistant", "content": answered.text}]
        self.result = finished.result
        self.show_stats()
