"""Stage processes of this machine: started, watched and ended by the engine, or by a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson

from engine.errors import SkippyError, StageLost
from engine.protocol.messages import Hop
from engine.stage.process import StageSettings
from engine.transport.timeouts import TIMEOUTS

Progress = Callable[[int, int], None]


class LocalStage:
    """One stage process on this machine.

    Its standard input stays open for as long as this process lives; when it closes, for whatever reason, the
    stage ends. Its standard error goes to a log file, never to a terminal.
    """

    def __init__(self, index: int, settings: StageSettings, log_folder: Path) -> None:
        self.index = index
        self.settings = replace(settings, token=secrets.token_hex(16))
        self.log_path = log_folder / f"stage-{index}.log"
        self.restarts = -1  # the first start is none
        self.url = ""
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def hop(self) -> Hop:
        return Hop(self.url, self.settings.token)

    async def start(self, progress: Progress | None = None) -> None:
        """Start the process and wait until it listens. Raises the error that it reports, or StageLost.

        One that is killed or hangs while it loads is started a second time.
        """
        await self.kill()
        self.restarts += 1
        try:
            await self._start(progress)
        except StageLost:
            if self._process is None or (self._process.returncode or -1) > 0:
                raise  # stopped, or it ended by itself and would do so again
            await self.kill()
            self.restarts += 1
            await self._start(progress)

    async def _start(self, progress: Progress | None) -> None:
        self._process = process = await start_module("engine.stage.process", self.log_path)
        assert process.stdin is not None
        process.stdin.write(orjson.dumps(asdict(self.settings)) + b"\n")
        with contextlib.suppress(ConnectionError):  # it ended at once: reading says so
            await process.stdin.drain()
        try:
            async with asyncio.timeout(TIMEOUTS.load):
                while (answer := await self._next_answer(process)).get("ready") is None:
                    if progress is not None and "progress" in answer:
                        progress(*answer["progress"])
        except TimeoutError:
            raise self._did_not_start(f"it was not ready within {TIMEOUTS.load:g} s") from None
        self.url = answer["ready"]

    async def stop(self) -> None:
        """End the process: by closing its standard input, by force if that is not enough."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(TIMEOUTS.stop_process):
                await process.wait()
        except TimeoutError:
            await kill_process(process)

    async def kill(self) -> None:
        """End the process by force: it is gone already, or hangs."""
        process, self._process = self._process, None
        if process is not None:
            await kill_process(process)

    async def _next_answer(self, process: Process) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(TIMEOUTS.load_silent):
                line = await process.stdout.readline()
        except TimeoutError:
            raise self._did_not_start(f"it has been silent for {TIMEOUTS.load_silent:g} s") from None
        if not line:
            raise self._did_not_start(ending(await process.wait()))
        answer: dict[str, Any] = orjson.loads(line)
        if "error" in answer:
            fault = answer["error"]
            raise SkippyError(
                f"stage {self.index}: {fault['message']}", hint=fault["hint"], code=fault["code"]
            )
        return answer

    def _did_not_start(self, reason: str) -> StageLost:
        return StageLost(
            f"stage {self.index} (layers {self.settings.first}:{self.settings.end}) did not start: {reason}",
            hint=f"see {self.log_path}",
            stage=self.index,
        )


def ending(code: int) -> str:
    """How a process ended, in words, from its return code."""
    return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"


async def start_module(module: str, log_path: Path) -> Process:
    """Start a module of ours that computes; both pipes are ours, its standard error goes to the log."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            # A Ctrl+C in the terminal is for the front end; children end with their parent.
            start_new_session=True,
        )


async def kill_process(process: Process) -> None:
    """End a process by force, if it has not ended, and wait for it."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # process.kill() would look whether it has ended, and so take its return code from asyncio.
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()
