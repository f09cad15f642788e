"""Files that are made once and kept: slices and the default model.

A file appears under its name only when it is whole: it is written to `NAME.tmp`, flushed to the disk and
renamed. Beside it `NAME.json` holds its SHA-256, what it was made from, its size and its time of change.
While these two have not moved the hash is believed, else the file is hashed again, and made anew if it
differs. A lock file makes concurrent processes build once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from engine.errors import CacheError
from engine.model.lock import locked, locked_now
from engine.model.writer import CHUNK_BYTES, GgufContent, Progress

BUILD_STALL_SECONDS = 120.0
"""How long another process's build may stand still before we stop waiting for it."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Record:
    """What is known about a cached file."""

    sha256: str
    size: int
    mtime_ns: int
    source: str


def cached_file(
    target: Path, source: str, make: Callable[[], GgufContent], progress: Progress | None = None
) -> Path:
    """`target`, made first unless it is there, undamaged, and was made from `source`.

    `source` says in any words what the content depends on. Raises CacheError when the cache cannot be
    written, and whatever `make` raises.
    """
    if is_good(target, source):
        return target
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(beside(target, ".lock"), _Patience(target)):
            if not is_good(target, source):
                _remove_leftovers(target.parent)
                _build(target, source, make(), progress)
    return target


def file_sha256(path: Path) -> str:
    """SHA-256 of a file in hex, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def free_bytes(directory: Path) -> int:
    """Space left on the disk of `directory`."""
    return shutil.disk_usage(directory).free


def beside(target: Path, suffix: str) -> Path:
    """The file of that name with `suffix` after it."""
    return target.with_name(target.name + suffix)


def read_record(target: Path) -> Record | None:
    """What is known about a cached file; None if that is nothing."""
    try:
        return Record(**orjson.loads(beside(target, ".json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_good(target: Path, source: str) -> bool:
    """Whether a cached file is there, undamaged, and was made from `source`."""
    record = read_record(target)
    try:
        info = target.stat()
    except OSError:
        return False
    if record is None or record.source != source or record.size != info.st_size:
        return False
    if record.mtime_ns == info.st_mtime_ns:
        return True
    if file_sha256(target) != record.sha256:
        return False
    with suppress(OSError):  # a cache that we may only read is hashed every time
        _write_record(target, Record(record.sha256, record.size, _date_back(target), source))
    return True


def _build(target: Path, source: str, content: GgufContent, progress: Progress | None) -> None:
    needed = content.n_bytes
    check_space(target, needed)
    temporary = beside(target, ".tmp")
    try:
        with temporary.open("wb") as file:
            sha256 = content.write(file, progress)
            flush_to_disk(file.fileno())
        put_in_place(temporary, target, sha256, source)
    finally:
        temporary.unlink(missing_ok=True)


def check_space(target: Path, needed: int) -> None:
    """Raise CacheError if the disk of `target` has less than `needed` bytes left."""
    free = free_bytes(target.parent)
    if needed > free:
        raise CacheError(
            f"{target.parent} has {free / 1e9:.1f} GB left, and {target.name} needs {needed / 1e9:.1f} GB",
            hint="free some space, or point XDG_CACHE_HOME to another disk",
        )


def put_in_place(temporary: Path, target: Path, sha256: str, source: str) -> None:
    """Give a file that is whole and on the disk its name, and write down what is known about it."""
    record = Record(sha256, temporary.stat().st_size, _date_back(temporary), source)
    temporary.replace(target)
    _write_record(target, record)


def _date_back(path: Path) -> int:
    """Set the time of change to ten seconds ago: any later write shows, however coarse the clock."""
    moment = time.time_ns() - 10_000_000_000
    os.utime(path, ns=(moment, moment))
    return path.stat().st_mtime_ns


def _write_record(target: Path, record: Record) -> None:
    temporary = beside(target, ".json.tmp")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(asdict(record)))
        flush_to_disk(file.fileno())
    temporary.replace(beside(target, ".json"))


def flush_to_disk(descriptor: int) -> None:
    """fsync; the one place where tests let a disk fail."""
    os.fsync(descriptor)


def _remove_leftovers(directory: Path) -> None:
    """Delete what killed writers left: temporary files whose lock nobody holds."""
    for temporary in directory.glob("*.gguf.tmp"):
        lock = temporary.with_name(temporary.name.removesuffix(".tmp") + ".lock")
        with locked_now(lock) as held:
            if held:
                temporary.unlink(missing_ok=True)


class _Patience:
    """Waiting for another process's build, until it stands still for too long."""

    def __init__(self, target: Path) -> None:
        self.temporary = beside(target, ".tmp")
        self.size = -1
        self.since = time.monotonic()

    def __call__(self) -> None:
        size = self.temporary.stat().st_size if self.temporary.exists() else 0
        if size != self.size:
            self.size = size
            self.since = time.monotonic()
        elif time.monotonic() - self.since > BUILD_STALL_SECONDS:
            raise CacheError(
                f"{self.temporary} has not grown for {BUILD_STALL_SECONDS:.0f} s",
                hint="stop the other process that is building it, and try again",
            )


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """Turn an OSError of the cache into one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            cause, hint = "the disk is full", "free some space, or point XDG_CACHE_HOME to another disk"
        elif error.errno in _FORBIDDEN:
            cause, hint = "it cannot be written", "point XDG_CACHE_HOME to a directory of yours"
        else:
            cause, hint = error.strerror or str(error), "point XDG_CACHE_HOME to another disk"
        raise CacheError(f"{target} cannot be made: {cause}", hint=hint) from error
