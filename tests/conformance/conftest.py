"""The worker process of the conformance tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Worker:
    """Runs comparisons in a process that may die; a job that kills it yields `{"died": exit status}`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def compare(self, name: str, cuts: Sequence[int], spoil: str = "") -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"name": name, "cuts": list(cuts), "spoil": spoil}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            result: dict[str, Any] = json.loads(line)
            return result
        self.process = None
        return {"died": process.wait()}

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(timeout=30)

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.conformance.worker", str(self.directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
                text=True,
            )
        return self.process


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    running = Worker(tmp_path_factory.mktemp("tiny"))
    yield running
    running.close()
