"""Tiny random models, and the default model where real text is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.model.demo import demo_available, demo_model
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from tests.conformance.cases import MODELS

TinyModels = Callable[[str], ModelFile]

TEXT = (
    "The lighthouse keeper climbed the spiral stairs every evening at six. He trimmed the wick, polished the "
    "great lens, and wrote the weather in a small blue book. "
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A tiny model by the name of its conformance case."""
    directory = tmp_path_factory.mktemp("tiny")
    known: dict[str, ModelFile] = {}

    def make(name: str) -> ModelFile:
        if name not in known:
            path = directory / f"{name}.gguf"
            MODELS[name].write(path)
            known[name] = ModelFile.open(path)
        return known[name]

    return make


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slices")


@pytest.fixture(scope="session")
def demo() -> ModelFile:
    if not demo_available():
        pytest.skip("the default model is not installed")
    return ModelFile.open(demo_model())


@pytest.fixture(scope="session")
def text_tokens(demo: ModelFile) -> list[int]:
    """1,600 tokens of English."""
    with Tokenizer(demo.path) as tokenizer:
        return tokenizer.encode(TEXT * 60, special=False)[:1600]
