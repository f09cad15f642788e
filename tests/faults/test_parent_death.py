"""Nothing outlives its parent: not the engine, not the stages, not even after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks processes up in /proc"),
]

PROGRAM = Path(sys.executable).parent / "skippy-prompt"
DEADLINE = 20.0  # seconds; the bound of a test, not a measurement


def children(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("victim", ["front end", "engine"])
def test_everything_ends_after_kill_9(victim: str) -> None:
    command = [PROGRAM, "--split", "10,20", "--strategy", "disabled", "--max-tokens", "2000", "Tell a story."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as front_end:
        assert front_end.stdout is not None
        assert front_end.stdout.read(1), "no answer has begun"
        family = children(front_end.pid)
        assert len(family) == 3, "an engine and two stages"
        os.kill(front_end.pid if victim == "front end" else family[0], signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE
        while not all(map(is_gone, family)):
            assert time.monotonic() < deadline, "processes were left behind"
            time.sleep(0.02)
        _, errors = front_end.communicate(timeout=DEADLINE)
    if victim == "engine":
        assert front_end.returncode == 1
        assert b"Traceback" not in errors
        assert len(errors.splitlines()) == 1
