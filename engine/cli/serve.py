"""`skippy-engine serve`: an engine that front ends attach to, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from pathlib import Path

from engine.cli.interrupts import Interrupts
from engine.cli.options import config_file_of, flags_with_stages, nodes_of
from engine.cli.output import NoticePrinter, Progress
from engine.cli.session import Listener, Session
from engine.client.client import EngineClient, RunningEngine
from engine.client.process import EngineProcess
from engine.client.sanitize import one_line
from engine.config.plan import RunPlan
from engine.config.resolve import read_token, resolve_plan
from engine.errors import EXIT_OK, ConfigError, EngineLost, UsageError
from engine.model.paths import data_dir, log_dir

TOKEN_FILE = "engine-token"


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl+C. Raises SkippyError."""
    flags = flags_with_stages(
        arguments, token_needs="--stage, --node or --topology", token_hint="local stages need no token"
    )
    plan = resolve_plan(flags, config_file_of(arguments.config), nodes_of(arguments))
    if not arguments.port.isdecimal() or int(arguments.port) > 65535:
        raise UsageError(f"--port must be a whole number between 0 and 65535, not {arguments.port!r}")
    token_file = Path(arguments.attach_token_file or data_dir() / TOKEN_FILE).expanduser().absolute()
    return asyncio.run(_serve(plan, int(arguments.port), token_file, arguments.program))


async def _serve(plan: RunPlan, port: int, token_file: Path, program: str) -> int:
    token = _token_of(token_file)
    with Interrupts() as interrupts:
        process = await EngineProcess.start(plan, log_dir() / "engine.log", token=token, port=port)
        try:
            await _loaded(process, interrupts, token_file, program)
            ended = asyncio.create_task(process.wait())
            if await interrupts.done_before(ended):
                raise EngineLost(f"the engine {ended.result()}", hint=process.hint)
            return EXIT_OK
        finally:
            await process.stop()


async def _loaded(process: EngineProcess, interrupts: Interrupts, token_file: Path, program: str) -> None:
    """Wait until the engine is ready, then say where. Nobody is attached afterwards: that would cost."""
    listeners: list[Listener] = [Progress(sys.stderr), NoticePrinter(sys.stderr, program)]
    session = Session(EngineClient(RunningEngine(process.url, process.token)), listeners, interrupts)
    try:
        await session.open()
    finally:
        await session.client.close()
    model = session.state.model
    name = one_line(model.name) if model is not None else ""
    print(f"ready {process.url} token-file {token_file} model {name}", flush=True)


def _token_of(file: Path) -> str:
    """The token in a file, which is made for its owner alone if it is missing."""
    if file.exists():
        return read_token(file)
    token = secrets.token_hex(16)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(f"{token}\n")
    except OSError as error:
        raise ConfigError(f"cannot write the token file {file}: {error.strerror or error}") from error
    return token
