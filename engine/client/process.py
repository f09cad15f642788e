"""The engine as a child process.

The child reads one JSON line (plan and token) and answers with one line: where its local link listens, or why
it does not. Its standard input stays open for as long as this process lives: when it closes, for whatever
reason, the engine ends and its stages with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

import engine
from engine.config.plain import plan_to_dict
from engine.config.plan import RunPlan
from engine.errors import EngineLost, reported_error
from engine.timeouts import TIMEOUTS, Timeouts

ENGINE_COMMAND = (sys.executable, "-P", "-m", "engine.coordinator.process")

LOG_LIMIT = 4 << 20  # bytes after which a new log file is begun; one old one is kept


class EngineProcess:
    """A running engine and the address of its local link."""

    def __init__(self, process: Process, url: str, token: str, log: Log, timeouts: Timeouts) -> None:
        self._process = process
        self._log = log
        self._timeouts = timeouts
        self.url = url
        self.token = token

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def hint(self) -> str:
        """Where more can be read about how it went."""
        return self._log.hint

    @classmethod
    async def start(
        cls,
        plan: RunPlan,
        log_path: Path,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        token: str = "",
        port: int = 0,
        timeouts: Timeouts = TIMEOUTS,
    ) -> EngineProcess:
        """Start an engine and wait until it listens, not until it is ready.

        Without a token it gets one that nobody else knows, without a port a free one. Raises the error that
        the engine reports, or EngineLost when it ends or stays silent.
        """
        token = token or secrets.token_hex(16)
        settings = {"plan": plan_to_dict(plan), "token": token, "port": port}
        log = Log(log_path)
        process = await _spawn(command, log)
        try:
            async with asyncio.timeout(timeouts.engine_start):
                answer = await _first_answer(process, settings, log)
        except TimeoutError:
            await _kill(process)
            raise EngineLost(
                f"the engine said nothing for {timeouts.engine_start:g} s", hint=log.hint
            ) from None
        except BaseException:
            await _kill(process)
            raise
        return cls(process, answer["url"], token, log, timeouts)

    async def wait(self) -> str:
        """Wait for the end of the process; returns how it ended, in words."""
        return await _ending(self._process, self._log)

    async def stop(self) -> None:
        """End the process: by closing its standard input, by force if that is not enough."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(self._timeouts.engine_stop):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End the process by force."""
        await _kill(self._process)


class Log:
    """The log file of an engine, and what this engine has written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_LIMIT:
            path.replace(path.with_suffix(".old.log"))
        self._start = path.stat().st_size if path.exists() else 0

    @property
    def hint(self) -> str:
        return f"see {self.path}"

    def last_line(self) -> str:
        """The last line of text since this engine was started: mostly the reason of its end."""
        with self.path.open("rb") as file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


async def _spawn(command: Sequence[str], log: Log) -> Process:
    try:
        with log.path.open("ab") as stderr:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                env=_environment(),
                # Ctrl+C in the terminal is for the front end: it decides what becomes of an answer.
                start_new_session=True,
            )
    except OSError as error:
        raise EngineLost(f"cannot start the engine: {error.strerror or error}") from error


def _environment() -> dict[str, str]:
    """Of the child, which must find this very package, also in a checkout that is not installed."""
    root = Path(engine.__file__).resolve().parents[1]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


async def _first_answer(process: Process, settings: dict[str, Any], log: Log) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):  # it ended at once: reading says so
        process.stdin.write(orjson.dumps(settings) + b"\n")
        await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise EngineLost(f"the engine did not start: it {await _ending(process, log)}", hint=log.hint)
    try:
        answer: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EngineLost("the engine did not answer in its protocol", hint=log.hint) from error
    if "error" in answer:
        fault = answer["error"]
        raise reported_error(fault["message"], hint=fault["hint"], code=fault["code"])
    return answer


async def _ending(process: Process, log: Log) -> str:
    code = await process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    reason = log.last_line() if code > 0 else ""
    return f"{how} ({reason})" if reason else how


async def _kill(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # process.kill() would look whether it has ended, and so take its return code from asyncio.
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()
