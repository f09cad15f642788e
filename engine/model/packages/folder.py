"""The folder of a package: which of its files are here, and whether they are what the manifest says.

A machine may hold a part of a package: a stage its own slice, a front machine the front. A file's SHA-256 is
computed when the file is first used on a machine and believed for as long as the file has not moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from engine.config.manifest import Manifest, PackagedFile, PackagedSlice, Problem
from engine.config.package_rules import is_safe, read_manifest
from engine.model.paths import cache_dir
from engine.model.writer import CHUNK_BYTES, Progress

_COPY = "copy the file again from where the package came from"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file whose hash was found right, as it was then."""

    sha256: str
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class Package:
    """An opened package. Raises PackageError wherever something is not as the manifest says."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path) -> Package:
        """By its folder; only the manifest is read."""
        return cls(directory, read_manifest(directory))

    def slice_of(self, first: int, end: int) -> PackagedSlice | None:
        """The slice of exactly these layers, if the package was cut so."""
        return next((item for item in self.manifest.slices if item.layers == (first, end)), None)

    def has(self, file: PackagedFile | PackagedSlice) -> bool:
        """Whether a file of the package is on this machine."""
        return is_safe(file.path) and (self.directory / file.path).exists()

    def path(self, file: PackagedFile | PackagedSlice, progress: Progress | None = None) -> Path:
        """A file of the package, found to be safe, whole and undamaged."""
        for problem in file_problems(self.directory, file):
            raise problem.error(self.directory)
        path = self.directory / file.path
        if _remembered(path) != _seen(path, file.sha256):
            for problem in hash_problems(self.directory, file, progress):
                raise problem.error(self.directory)
            _remember(path, file.sha256)
        return path


def file_problems(directory: Path, file: PackagedFile | PackagedSlice) -> Iterator[Problem]:
    """What a look at the folder shows to be wrong with a file."""
    path = directory / file.path
    if not is_safe(file.path) or not path.resolve().is_relative_to(directory.resolve()):
        yield Problem("unsafe_path", "leads out of the package", file.path, "use a package that you trust")
    elif not path.is_file():
        yield Problem("missing_file", "is not here", file.path, _COPY)
    elif path.stat().st_size != file.bytes:
        size = path.stat().st_size
        yield Problem("wrong_size", f"has {size} bytes instead of {file.bytes}", file.path, _COPY)


def hash_problems(
    directory: Path, file: PackagedFile | PackagedSlice, progress: Progress | None = None
) -> Iterator[Problem]:
    """Read the whole file and compare its SHA-256."""
    digest, done = hashlib.sha256(), 0
    try:
        with (directory / file.path).open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, file.bytes)
    except OSError as error:
        yield Problem("unreadable_file", f"cannot be read: {error.strerror or error}", file.path, _COPY)
        return
    found = digest.hexdigest()
    if found != file.sha256:
        message = f"has the sha256 {found[:12]}... instead of {file.sha256[:12]}..."
        yield Problem("wrong_sha256", message, file.path, _COPY)


def share_of(progress: Progress | None, before: int, total: int) -> Progress | None:
    """The progress of one file as that of all of them: `before` bytes are done, of `total`."""
    if progress is None:
        return None
    report = progress
    return lambda done, _: report(before + done, total)


def _seen(path: Path, sha256: str) -> _Seen:
    info = path.stat()
    return _Seen(sha256, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _record(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return cache_dir() / "packages" / f"{name}.json"


def _remembered(path: Path) -> _Seen | None:
    try:
        return _Seen(**orjson.loads(_record(path).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _remember(path: Path, sha256: str) -> None:
    """Best effort: without a cache the file is hashed every time."""
    record = _record(path)
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        unfinished = record.with_suffix(".tmp")
        unfinished.write_bytes(orjson.dumps(asdict(_seen(path, sha256))))
        unfinished.replace(record)
