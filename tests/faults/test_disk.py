"""A disk that takes no more: a stage says so in one line and leaves nothing half written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import DEADLINE

STAGE = [sys.executable, "-m", "engine.cli.main", "stage"]


def stage(model: Path, cache: Path, limit: str) -> subprocess.CompletedProcess[str]:
    """Start a stage whose slice goes to `cache`, with a limit on the size of files in KiB."""
    shell = f'ulimit -f {limit}; exec "$@"'
    return subprocess.run(
        ["bash", "-c", shell, "bash", *STAGE, "--model", str(model), "--layers", "3:6"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


def test_a_full_disk_is_one_line_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    done = stage(model, tmp_path, "16")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1024]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_not_be_written_is_one_line(model: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = stage(model, tmp_path, "unlimited")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
