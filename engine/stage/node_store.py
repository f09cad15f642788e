"""Slices on the disk of a node: those that are there, and one that comes in over the link.

A slice that comes in is kept as `NAME.part` until it is whole, also when the link breaks, so that the next
attempt goes on from there. Only when its hash is what was announced does it get its name. All of this blocks;
a node calls it from threads.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from engine.errors import Busy, CacheError, SkippyError
from engine.model import cache, pruning
from engine.model.lock import locked_now
from engine.model.paths import cache_dir
from engine.model.slices import open_slice, slice_folder, slices_folder
from engine.model.writer import CHUNK_BYTES, Progress
from engine.protocol.limits import MAX_HELD
from engine.protocol.node_messages import Assign, HeldSlice

RESERVE_BYTES = 1 << 30
"""Left free on the disk whatever is sent: others need it too."""

PART_SECONDS = 7 * 24 * 3600.0
"""A part that has not grown for this long is of no more use to anybody."""

RECEIVED = "received"
"""What is noted as the source of a slice that came over a link."""


class SliceStore:
    """The slices in the cache of this machine: all models' together, `most` bytes of them (0: any number)."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._known: dict[Path, tuple[int, HeldSlice | None]] = {}  # by path: size, and what it holds

    @property
    def free_bytes(self) -> int:
        """Room for further slices."""
        root = cache_dir()
        root.mkdir(parents=True, exist_ok=True)
        return max(0, cache.free_bytes(root) - RESERVE_BYTES)

    def held(self) -> tuple[HeldSlice, ...]:
        """Slices that can be loaded at once; at most `MAX_HELD`, the newest first."""
        found = [(path, record) for path in self._files("*") if (record := cache.read_record(path))]
        found.sort(key=lambda item: item[1].mtime_ns, reverse=True)
        slices = (self._look_into(path, record) for path, record in found)
        return tuple(slice_ for slice_ in slices if slice_ is not None)[:MAX_HELD]

    def find(self, fingerprint: str, sha256: str) -> Path | None:
        """The undamaged slice with this hash."""
        for path in self._files(fingerprint):
            record = cache.read_record(path)
            if record is not None and record.sha256 == sha256 and cache.is_good(path, record.source):
                pruning.mark_used(path)
                return path
        return None

    def keep_within(self, coming: int = 0) -> None:
        """Remove what is too much and not in use, so that there is room for `coming` bytes, too."""
        pruning.keep_within(slices_folder(), self._most, coming)

    def _files(self, fingerprint: str) -> Iterator[Path]:
        return slices_folder().glob(f"{fingerprint}/*.gguf")

    def _look_into(self, path: Path, record: cache.Record) -> HeldSlice | None:
        known = self._known.get(path)
        if known is None or known[0] != record.size:
            known = self._known[path] = (record.size, _described(path, record.sha256))
        return known[1]


def _described(path: Path, sha256: str) -> HeldSlice | None:
    try:
        slice_ = open_slice(path)
    except SkippyError:
        return None  # of another version of ours
    return HeldSlice(slice_.fingerprint, slice_.first, slice_.end, sha256)


class IncomingSlice:
    """A slice on its way in. Used as a context: nobody else receives the same one meanwhile.

    Raises Busy if somebody else does, CacheError if it does not fit on the disk or the disk fails.
    """

    def __init__(self, assign: Assign, store: SliceStore) -> None:
        self._assign = assign
        self._store = store
        folder = slice_folder(assign.fingerprint)
        self.target = folder / f"layers-{assign.first}-{assign.end}-{assign.sha256[:16]}.gguf"
        self._part = cache.beside(self.target, pruning.PART)
        self._open = ExitStack()
        self.offset = 0  # bytes that are there already

    def __enter__(self) -> IncomingSlice:
        with self._open, cache.explained(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            if not self._open.enter_context(locked_now(cache.beside(self.target, ".lock"))):
                raise Busy(f"another process of this machine receives {self.target.name}")
            _remove_old_parts(self.target.parent)
            self.offset = self._kept_bytes()
            coming = self._assign.size - self.offset
            self._store.keep_within(coming)
            pruning.make_room(slices_folder(), coming + RESERVE_BYTES)
            cache.check_space(self.target, coming + RESERVE_BYTES)
            self._file = self._open.enter_context(self._part.open("ab", buffering=0))
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._open.close()

    def write(self, data: bytes) -> None:
        """Append what came."""
        rest = memoryview(data)
        with cache.explained(self.target):
            while rest:
                written = self._file.write(rest)
                rest = rest[written:]
        self.offset += len(data)

    def finish(self, progress: Progress) -> Path:
        """Check the whole file and give it its name. CacheError `slice-hash` if it is not what was announced;
        nothing of it is kept then."""
        with cache.explained(self.target):
            cache.flush_to_disk(self._file.fileno())
            self._file.close()
            sha256 = _hashed(self._part, self._assign.size, progress)
            if sha256 != self._assign.sha256:
                self._part.unlink()
                announced = self._assign.sha256
                raise CacheError(
                    f"the slice that came has the hash {sha256[:16]}.., announced was {announced[:16]}..",
                    hint="it was not kept; try again",
                    code="slice-hash",
                )
            cache.put_in_place(self._part, self.target, sha256, RECEIVED)
            pruning.mark_used(self.target)
        return self.target

    def _kept_bytes(self) -> int:
        """What an earlier attempt left. More than there should be is nothing to go on with."""
        kept = self._part.stat().st_size if self._part.exists() else 0
        if kept > self._assign.size:
            self._part.unlink()
            return 0
        return kept


def _hashed(path: Path, size: int, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(done, size)
    return digest.hexdigest()


def _remove_old_parts(folder: Path) -> None:
    for part in folder.glob("*.gguf.part"):
        with locked_now(part.with_suffix(".lock")) as unused:
            if unused and time.time() - part.stat().st_mtime > PART_SECONDS:
                part.unlink(missing_ok=True)
