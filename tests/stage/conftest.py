"""The tiny models, and a cache of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model.file import ModelFile
from tests.compute.conftest import DRAFTER
from tests.faults.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """A model of six layers."""
    return ModelFile.open(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    """A tiny model with a NextN block, whose rows of a window equal single rows."""
    path = tmp_path_factory.mktemp("drafter") / "drafter.gguf"
    DRAFTER.write(path)
    return ModelFile.open(path)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of nodes in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "cache"
