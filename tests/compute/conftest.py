"""Tiny random models, and the default model where real text is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.model.demo import demo_available, demo_model
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from tests.conformance.cases import MODELS, Q8_0
from tests.conformance.tiny import Shapes, TinyModel, fused_qkv

TinyModels = Callable[[str], ModelFile]

TEXT = (
    "The lighthouse keeper climbed the spiral stairs every evening at six. He trimmed the wick, polished the "
    "great lens, and wrote the weather in a small blue book. "
)


def _dense(shapes: Shapes) -> Shapes:
    own = ("attn_sinks", "embed_tokens", "shared_head_head")
    return fused_qkv({name: shape for name, shape in shapes.items() if not any(part in name for part in own)})


DRAFTER = TinyModel(
    "drafter",
    "mimo2",
    {
        "vocab_size": 64,
        "context_length": 2048,
        "embedding_length": 64,
        "block_count": 7,
        "nextn_predict_layers": 1,
        "feed_forward_length": 96,
        "expert_feed_forward_length": 0,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 2048,
        "attention.sliding_window_pattern": [True] * 7,
        "rope.dimension_count": 32,
        "rope.freq_base": 10000.0,
        "rope.freq_base_swa": 10000.0,
    },
    edit=_dense,
    quantized=Q8_0,
)
"""Like the default model: dense, quantised (rows of a window equal single rows), with a NextN block."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A tiny model by the name of its conformance case, or `drafter`."""
    directory = tmp_path_factory.mktemp("tiny")
    cases = {**MODELS, DRAFTER.name: DRAFTER}
    known: dict[str, ModelFile] = {}

    def make(name: str) -> ModelFile:
        if name not in known:
            path = directory / f"{name}.gguf"
            cases[name].write(path)
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
