"""A slice as the engine's machine offers it to a node: its hash, and its bytes from any offset on.

Nothing is written for it: a node that needs the slice is sent it straight from the model's file. The hash is
computed once and kept, so that later starts only compare it with what the nodes have.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from engine.model.file import ModelFile
from engine.model.packages.model import PackageModel
from engine.model.rebase import plan_slice
from engine.model.slices import SLICER_VERSION, slice_content, slice_folder, source_of
from engine.model.writer import CHUNK_BYTES, GgufContent, Progress

Pieces = Callable[[int], Iterator[memoryview]]
"""The bytes of a slice from an offset on, in pieces of any size, each good until the next."""


@dataclass(frozen=True, slots=True)
class OfferedSlice:
    """Layers `first` to `end` (not included). `pieces` is None if they are not on this machine."""

    first: int
    end: int
    sha256: str
    size: int
    pieces: Pieces | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Kept:
    sha256: str
    source: str


def offer(model: ModelFile, first: int, end: int, progress: Progress | None = None) -> OfferedSlice:
    """Prepare a slice for a node. Blocks, and reads all of it the first time.

    Raises CutRefused, ArchitectureRefused, or ModelFileError when the model cannot be read.
    """
    if isinstance(model, PackageModel):
        package = model.package
        packaged = package.slice_of(first, end)
        if packaged is not None:
            pieces = _pieces_of(package.path(packaged, progress)) if package.has(packaged) else None
            return OfferedSlice(first, end, packaged.sha256, packaged.bytes, pieces)
    plan = plan_slice(model, first, end)
    content = slice_content(model, plan, first, end)
    kept = slice_folder(model.fingerprint) / f"offer-{first}-{end}-v{SLICER_VERSION}.json"
    sha256 = _hash(content, kept, source_of(model, plan), progress)
    return OfferedSlice(first, end, sha256, content.n_bytes, content.pieces)


def _pieces_of(path: Path) -> Pieces:
    """The bytes of a file."""

    def pieces(start: int) -> Iterator[memoryview]:
        with path.open("rb") as file:
            file.seek(start)
            while data := file.read(CHUNK_BYTES):
                yield memoryview(data)

    return pieces


def _hash(content: GgufContent, kept: Path, source: str, progress: Progress | None) -> str:
    """The SHA-256 of a file that is never written."""
    try:
        known = _Kept(**orjson.loads(kept.read_bytes()))
    except (OSError, ValueError, TypeError):
        known = None
    if known is not None and known.source == source:
        return known.sha256
    digest, done = hashlib.sha256(), 0
    for piece in content.pieces():
        digest.update(piece)
        done += len(piece)
        if progress is not None:
            progress(done, content.n_bytes)
    _keep(kept, _Kept(digest.hexdigest(), source))
    return digest.hexdigest()


def _keep(path: Path, kept: _Kept) -> None:
    """A cache that cannot be written costs time at the next start and nothing else."""
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(orjson.dumps(asdict(kept)))
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
