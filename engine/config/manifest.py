"""`model-package.json`: what a package of a model holds, and how the model is meant to be run.

A package is a folder with a model that was cut into slices (`engine/model/packages`). Here are the types of
its manifest; `package_rules` checks what it says, and `package_layer` makes it the layer of settings between
`skippy.toml` and the defaults.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.config.plain import from_plain
from engine.errors import PackageError, UsageError

MANIFEST_NAME = "model-package.json"
SCHEMA = 1
FORMAT = "layer-package"
MAX_MANIFEST_BYTES = 16 << 20

_REBUILD = "make the package again: skippy-engine package MODEL.gguf --splits N --out DIR"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a package. `code` is stable; `path` is relative to the package."""

    code: str
    message: str
    path: str = MANIFEST_NAME
    hint: str = _REBUILD

    def error(self, directory: Path) -> BrokenPackage:
        """The problem as an error of one line."""
        return BrokenPackage(self, directory)


class BrokenPackage(PackageError):
    """A package that breaks a rule; `problem` says which."""

    def __init__(self, problem: Problem, directory: Path) -> None:
        message = f"{directory / problem.path}: {problem.message} ({problem.code})"
        super().__init__(message, hint=problem.hint, code=problem.code)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """The model that was cut."""

    name: str
    architecture: str
    fingerprint: str
    layers: int  # without NextN blocks
    nextn_layers: int
    embedding_length: int
    tied: bool  # the head is the token embedding


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file of the package; `path` is relative to its folder, `sha256` in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PackagedSlice:
    """The file of layers [first, end)."""

    path: str
    bytes: int
    sha256: str
    layers: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Proposer:
    """Where drafts come from: native-mtp, ngram-simple, ngram-cache or ngram-suffix."""

    type: str
    prediction_depth: int | None = None
    layer_indices: tuple[int, ...] = ()
    ngram_min: int | None = None
    ngram_max: int | None = None
    max_proposal_tokens: int | None = None
    history_scope: str | None = None


@dataclass(frozen=True, slots=True)
class ExtensionPolicy:
    """How many n-gram tokens follow the tokens of the model's own head."""

    initial_tokens: int
    max_tokens: int
    tail_backoff_proposals: int = 0


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How wide windows are and how many are in flight.

    `initial_window` is checked for other programs that read packages; here the policy chooses it.
    """

    default: str
    min_window: int
    max_window: int
    initial_window: int | None = None
    pipeline_depth: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """One value of `--strategy`: a proposer, or a primary one and what extends its drafts."""

    type: str
    proposer: str | None = None
    primary: str | None = None
    extender: str | None = None
    extension_policy: ExtensionPolicy | None = None
    window_policy: WindowPolicy | None = None


@dataclass(frozen=True, slots=True)
class SpeculativeDecoding:
    """`settings` holds further values of the table `speculative`, by name."""

    default: str
    proposers: dict[str, Proposer] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generation:
    """How answers are made."""

    speculative_decoding: SpeculativeDecoding | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole `model-package.json`."""

    schema: int
    format: str
    model: PackagedModel
    front: PackagedFile
    slices: tuple[PackagedSlice, ...]
    generation: Generation = field(default_factory=Generation)

    @property
    def cuts(self) -> tuple[int, ...]:
        """First layers of all slices but the first."""
        return tuple(item.layers[0] for item in self.slices[1:])

    @property
    def files(self) -> tuple[PackagedFile | PackagedSlice, ...]:
        """The front and the slices."""
        return (self.front, *self.slices)

    def to_json(self) -> bytes:
        """The file's content, made to be read by people too."""
        return orjson.dumps(_without_unsaid(asdict(self)), option=orjson.OPT_INDENT_2) + b"\n"


def is_package(path: Path) -> bool:
    """Whether a path is the folder of a package."""
    return (path / MANIFEST_NAME).is_file()


def parse_manifest(directory: Path) -> Manifest:
    """The manifest with the right types in it; raises PackageError when there is none of these."""
    path = directory / MANIFEST_NAME
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            message = f"it is larger than {MAX_MANIFEST_BYTES >> 20} MiB"
            raise Problem("manifest_too_large", message).error(directory)
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        hint = "give the folder of a package"
        raise Problem("missing_manifest", "there is no such file", hint=hint).error(directory) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise Problem("unreadable_manifest", message).error(directory) from error
    except orjson.JSONDecodeError as error:
        raise Problem("invalid_json", f"it is not valid JSON: {error}").error(directory) from error
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        message = f"schema {data.get('schema')!r} instead of {SCHEMA}"
        raise Problem("unsupported_schema", message).error(directory)
    try:
        return from_plain(Manifest, data, "manifest")
    except UsageError as error:
        raise Problem("invalid_manifest", str(error)).error(directory) from error


def _without_unsaid(value: Any) -> Any:
    """A dictionary without what was not said: None and empty containers."""
    if isinstance(value, dict):
        kept = {key: _without_unsaid(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None and item != {} and item != ()}
    return value
