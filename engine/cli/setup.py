"""What every command line front end sets up: an engine client, its log file, and the listeners."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cli.interrupts import Interrupts
from engine.cli.output import AnswerWriter, EventLog, NoticePrinter, Progress, nothing_begun, same_terminal
from engine.cli.session import Listener, Session
from engine.client.client import EngineClient, LocalEngine
from engine.client.process import ENGINE_COMMAND
from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.model.paths import log_dir


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """How a command was called."""

    program: str
    plan: RunPlan
    json: bool = False
    log_format: str = ""  # pretty | json; empty: events are not logged
    log_level: str | None = None
    engine_command: Sequence[str] | None = None

    def session(self, interrupts: Interrupts, writer: AnswerWriter | None) -> Session:
        """A session whose engine is not started yet. Answers go to `writer`."""
        command = self.engine_command or ENGINE_COMMAND
        client = EngineClient(LocalEngine(self.plan, log_dir() / "engine.log", command))
        begin_line = nothing_begun
        if writer is not None and same_terminal(sys.stdout, sys.stderr):
            begin_line = writer.end_line
        listeners: list[Listener] = [Progress(sys.stderr, begin_line)]
        if self.log_format != "json":  # there, notices are lines of the log
            listeners.append(NoticePrinter(sys.stderr, self.program, begin_line))
        if writer is not None:
            listeners.append(writer)
        if self.log_format:
            level = self.log_level or ("debug" if self.log_format == "json" else "info")
            listeners.append(EventLog(sys.stderr, self.log_format, level, begin_line))
        return Session(client, listeners, interrupts)


def request_of(plan: RunPlan, messages: Sequence[dict[str, str]], session: str) -> GenerateRequest:
    """A request with the settings of the plan. With `raw`, the last message is the prompt itself."""
    generation = plan.generation
    system = [{"role": "system", "content": generation.system}] if generation.system else []
    return GenerateRequest(
        request=uuid.uuid4().hex[:12],
        messages=() if generation.raw else (*system, *messages),
        prompt=messages[-1]["content"] if generation.raw else None,
        session=session,
        max_tokens=generation.max_tokens,
        sampling=generation.sampling,
        stop=generation.stop,
    )
