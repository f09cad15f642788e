"""`skippy-tui` in a process of its own on a pseudo terminal, for measurements."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]


class AppTerminal:
    """The app, attached to an engine; its output is read as it comes."""

    def __init__(self, arguments: Sequence[str], home: Path, size: tuple[int, int] = (120, 40)) -> None:
        self.written = 0  # bytes that the app has drawn
        self._awaited: dict[bytes, asyncio.Future[float]] = {}
        self._last = b""  # the end of what was read, where an awaited text may have begun
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            command = [sys.executable, "-m", "skippy_tui.main", *arguments]
            folders = {f"XDG_{kind}_HOME": str(home) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
            colors = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
            os.execve(command[0], command, {**os.environ, **folders, **colors})
        columns, rows = size
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._terminal, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        await asyncio.to_thread(os.waitpid, self.pid, 0)
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.close(self._terminal)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the app so far, all of its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._terminal, text.encode())

    async def seen(self, text: str, patience: float = 60.0) -> float:
        """Wait until a text is drawn as it stands; the moment, on the monotonic clock."""
        future = self._awaited[text.encode()] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, patience)
        finally:
            del self._awaited[text.encode()]

    def _read(self) -> None:
        try:
            data = os.read(self._terminal, 1 << 20)
        except OSError:  # the app has ended
            asyncio.get_running_loop().remove_reader(self._terminal)
            return
        now = time.monotonic()
        self.written += len(data)
        text = self._last + data
        for awaited, future in self._awaited.items():
            if awaited in text and not future.done():
                future.set_result(now)
        self._last = data[-64:]
