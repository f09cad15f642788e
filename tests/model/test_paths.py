"""XDG variables decide where files live (on Linux)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.model import paths


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's convention")
def test_xdg_variables_are_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    assert paths.config_dir() == tmp_path / "CONFIG" / "skippy"
    assert paths.data_dir() == tmp_path / "DATA" / "skippy"
    assert paths.cache_dir() == tmp_path / "CACHE" / "skippy"
    assert paths.log_dir() == tmp_path / "STATE" / "skippy" / "log"
    assert not list(tmp_path.iterdir())  # asking makes nothing
