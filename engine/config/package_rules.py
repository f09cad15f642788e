"""What must hold in a package's manifest. Each broken rule has a code of its own (docs/packages.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath

from engine.config.manifest import FORMAT, Manifest, Problem, parse_manifest
from engine.config.package_speculation import speculation_problems

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a package, which keeps every rule; its files are not looked at.

    Raises PackageError with the code of the first problem.
    """
    manifest = parse_manifest(directory)
    for problem in manifest_problems(manifest):
        raise problem.error(directory)
    return manifest


def manifest_problems(manifest: Manifest) -> Iterator[Problem]:
    """Everything that the manifest alone shows to be wrong."""
    yield from _model_problems(manifest)
    yield from _file_problems(manifest)
    yield from _layer_problems(manifest)
    yield from speculation_problems(manifest)


def _model_problems(manifest: Manifest) -> Iterator[Problem]:
    model = manifest.model
    if manifest.format != FORMAT:
        yield Problem("unsupported_format", f"format {manifest.format!r} instead of {FORMAT!r}")
    if not model.name.strip():
        yield Problem("empty_model_name", "model.name is empty")
    if not model.architecture.strip():
        yield Problem("empty_architecture", "model.architecture is empty")
    if not _FINGERPRINT.fullmatch(model.fingerprint):
        yield Problem("invalid_fingerprint", "model.fingerprint is not 32 hexadecimal digits")
    if model.layers < 1 or model.nextn_layers < 0 or model.embedding_length < 1:
        yield Problem("invalid_model_size", "model.layers, nextn_layers or embedding_length is too small")


def _file_problems(manifest: Manifest) -> Iterator[Problem]:
    seen: set[str] = set()
    for file in manifest.files:
        if not is_safe(file.path):
            message = f"the path {file.path!r} is not that of a file inside the package"
            yield Problem("unsafe_path", message, hint="get the package from somebody you trust")
        if file.path in seen:
            yield Problem("duplicate_path", f"{file.path!r} stands there twice")
        seen.add(file.path)
        if not _SHA256.fullmatch(file.sha256):
            yield Problem("invalid_sha256", f"the sha256 of {file.path!r} is not 64 hexadecimal digits")
        if file.bytes < 1:
            yield Problem("invalid_size", f"{file.path!r} is to have {file.bytes} bytes")


def _layer_problems(manifest: Manifest) -> Iterator[Problem]:
    layers = manifest.model.layers
    spans = [item.layers for item in manifest.slices]
    for first, end in spans:
        if not 0 <= first < end <= layers:
            yield Problem("invalid_layer_range", f"there are no layers {first}:{end} of {layers}")
    ends = [(0, 0), *spans, (layers, layers)]
    for (_, end), (first, _) in pairwise(ends):
        if first > end:
            yield Problem("missing_layers", f"no slice has layers {end}:{first}")
        elif first < end:
            yield Problem("overlapping_layers", f"layers {first}:{end} are in two slices, or out of order")


def is_safe(path: str) -> bool:
    """Whether a relative path stays inside its folder on every system."""
    posix = PurePosixPath(path)
    return (
        bool(posix.parts)
        and path == str(posix)
        and not {"\\", ":"} & set(path)
        and path.isprintable()
        and not posix.is_absolute()
        and ".." not in posix.parts
    )
