"""Runs command lines as people do: as processes, with pipes or on a terminal of their own."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKE_ENGINE = ROOT / "tests" / "client" / "fake_engine.py"

FAKE_COMMAND = (sys.executable, str(FAKE_ENGINE))

# skippy-prompt as installed, but for the engine that it starts.
_SCRIPT = f"import sys; from engine.cli.prompt import main; sys.exit(main(sys.argv[1:], {FAKE_COMMAND!r}))"
PROMPT = (sys.executable, "-c", _SCRIPT)

Tool = Callable[..., tuple[int, str, str]]
"""`skippy-engine`, called in this process: its exit code and what it wrote to both outputs."""

PATIENCE = 20.0  # seconds after which a test gives up


def environment(home: Path) -> dict[str, str]:
    """One in which all files of ours lie in `home`, and terminals are of the plain sort."""
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
    return {
        **os.environ,
        **folders,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "COLUMNS": "100",
        "LINES": "40",
    }


def run(
    command: Sequence[str], home: Path, *, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end with pipes."""
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**environment(home), **(env or {})},
        cwd=home,
        check=False,
    )


class Terminal:
    """A process on a pseudo terminal; all that it writes is kept in `seen`."""

    def __init__(self, command: Sequence[str], home: Path, columns: int = 100) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            os.execve(command[0], list(command), environment(home) | {"COLUMNS": str(columns)})
        self.seen = ""
        self._expected = 0  # where in `seen` the last expected text ended

    def type(self, text: str) -> None:
        """Send keys. Ctrl+C is \\x03, as a terminal sends it."""
        os.write(self._fd, text.encode())

    def expect(self, *texts: str) -> None:
        """Wait until these texts have been written, each after the one before, and after earlier ones."""
        for text in texts:
            while (found := self.seen.find(text, self._expected)) < 0:
                assert self._read(), f"{text!r} did not come; seen: {self.seen[self._expected :]!r}"
            self._expected = found + len(text)

    def wait(self) -> int:
        """Read to the end; returns the exit code."""
        while self._read():
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        return code

    def close(self) -> None:
        """End the process if the test did not."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], PATIENCE)
        assert ready, f"nothing came for {PATIENCE} s; seen: {self.seen[self._expected :]!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)
