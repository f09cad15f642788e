"""Nothing outlives its parent: not the engine, not the stages, not even after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import DEADLINE
from tests.faults.processes import children, is_gone

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="looks processes up in /proc, which is there on Linux only"
)

PROGRAM = [sys.executable, "-m", "engine.cli.prompt"]
FAMILY = 3  # an engine and two stages


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for something that comes in a moment."""
    deadline = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_everything_ends_after_kill_9(model: Path) -> None:
    options = ["--model", str(model), "--split", "2,4", "--ctx", "2048", "--temperature", "1", "--raw"]
    options += ["--strategy", "disabled", "--emulate-rtt-ms", "20", "--max-tokens", "2000"]
    with subprocess.Popen(
        [*PROGRAM, *options, "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as front_end:
        assert front_end.stdout is not None
        assert front_end.stdout.read(1), "no answer has begun"
        first = children(front_end.pid)
        assert len(first) == FAMILY
        os.kill(first[0], signal.SIGKILL)
        wait_until("stages outlived their engine", lambda: all(map(is_gone, first)))
        wait_until("no engine in its place", lambda: len(children(front_end.pid)) == FAMILY)
        second = children(front_end.pid)
        os.kill(front_end.pid, signal.SIGKILL)
        wait_until("an engine or a stage outlived the front end", lambda: all(map(is_gone, second)))
        _, errors = front_end.communicate(timeout=DEADLINE)
    assert b"Traceback" not in errors
