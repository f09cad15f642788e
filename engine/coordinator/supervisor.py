"""Local stage processes: started, watched and ended by the engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
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
        self.settings = replace(settings, host="127.0.0.1", port=0, token=secrets.token_hex(16))
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
        """Start the process and wait until it listens. Raises the error that it reports, or StageLost."""
        await self.stop()
        self.restarts += 1
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "engine.stage.process",
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
                # A Ctrl+C in the terminal is for the front end; stages end with their parent.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(orjson.dumps(asdict(self.settings)) + b"\n")
        async with asyncio.timeout(TIMEOUTS.load):
            await self._process.stdin.drain()
            while (answer := await self._next_answer()).get("ready") is None:
                if progress is not None and "progress" in answer:
                    progress(*answer["progress"])
        self.url = answer["ready"]

    async def wait(self) -> str:
        """Wait for the process to end; returns how it ended."""
        assert self._process is not None
        code = await self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"

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
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _next_answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise StageLost(
                f"stage {self.index} (layers {self.settings.first}:{self.settings.end}) did not start: "
                f"{await self.wait()}",
                hint=f"see {self.log_path}",
            )
        answer: dict[str, Any] = orjson.loads(line)
        if "error" in answer:
            fault = answer["error"]
            raise SkippyError(
                f"stage {self.index}: {fault['message']}", hint=fault["hint"], code=fault["code"]
            )
        return answer
