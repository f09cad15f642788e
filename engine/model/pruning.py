"""A bound for the slices on the disk: those not used for longest go first, none that is in use.

Whoever loads a slice of the cache holds `NAME.use.lock` beside it, together with others who do. When that
file was last changed says when somebody last began to use the slice. A slice that is still coming in
(`NAME.part`) counts as well, and goes like the others once nobody receives it any more.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine.model.cache import beside, free_bytes
from engine.model.lock import locked_now, locked_with_others

log = logging.getLogger("skippy.cache")

GIB = 1 << 30
PART = ".part"

GRACE_SECONDS = 60.0
"""Whoever has found a slice loads it within this time, and holds it from then on."""


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Keep a slice where it is, also from other processes. A file that is not of the cache stays anyway."""
    with ExitStack() as held:
        if beside(path, ".json").exists():
            with suppress(OSError):  # in a cache that we may only read
                held.enter_context(locked_with_others(_use_lock(path)))
        mark_used(path)
        yield


def mark_used(path: Path) -> None:
    """Somebody begins to use a slice, or has found it and is about to."""
    with suppress(OSError):
        if beside(path, ".json").exists():
            _use_lock(path).touch()


def keep_within(folder: Path, most: int, coming: int = 0) -> None:
    """Remove slices below `folder` until the others, and `coming` bytes more, take at most `most` bytes (0:
    any number). What is in use stays, even if that is more."""
    if not most:
        return
    kept = _slices(folder)
    excess = sum(each.size for each in kept) + coming - most
    if excess > 0 and _remove(kept, excess) < excess:
        log.warning("slices in use take more than %.1f GiB; slice_cache_gib may be larger", most / GIB)


def make_room(folder: Path, needed: int) -> None:
    """Remove slices below `folder` until the disk has `needed` bytes left; none if that cannot be enough."""
    kept, free = _slices(folder), free_bytes(folder)
    if free < needed <= free + sum(each.size for each in kept):
        _remove(kept, needed - free)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A slice, or what has come in of one."""

    path: Path
    size: int
    used: float  # seconds since the epoch


def _slices(folder: Path) -> list[_Kept]:
    """All below a folder, those that were not used for longest first."""
    found = []
    for pattern in ("*/*.gguf", f"*/*.gguf{PART}"):
        for path in folder.glob(pattern):
            with suppress(OSError):  # gone meanwhile, or not ours to remove
                found.append(_Kept(path, path.stat().st_size, _last_used(path)))
    return sorted(found, key=lambda each: each.used)


def _last_used(path: Path) -> float:
    made, lock = path.stat().st_mtime, _use_lock(path)
    if path.name.endswith(PART):
        return made
    if not lock.exists():  # it was made before slices had a bound
        lock.touch()
        os.utime(lock, (made, made))
    return lock.stat().st_mtime


def _remove(kept: list[_Kept], excess: int) -> int:
    """Remove slices that nobody uses, in their order, until `excess` bytes are gone; returns how many are."""
    removed = 0
    for each in kept:
        if removed >= excess:
            break
        with suppress(OSError), _unused(each.path) as unused:  # others may delete it, or forbid us to
            age = time.time() - _last_used(each.path)
            if unused and age >= GRACE_SECONDS:
                beside(each.path, ".json").unlink(missing_ok=True)
                each.path.unlink()
                removed += each.size
                name = f"{each.path.parent.name[:12]}/{each.path.name}"
                log.info("removed %s: %.2f GiB, not used for %.1f h", name, each.size / GIB, age / 3600)
    return removed


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    """Whether nobody has a slice loaded, makes or receives it; nobody begins to meanwhile."""
    target = path.with_name(path.name.removesuffix(PART))
    with locked_now(beside(target, ".lock")) as not_made, locked_now(_use_lock(target)) as not_loaded:
        yield not_made and not_loaded


def _use_lock(path: Path) -> Path:
    return beside(path, ".use.lock")
