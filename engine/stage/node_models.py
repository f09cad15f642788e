"""Models in the folders of a node, by fingerprint: whole ones, and slices of packages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from engine.config.manifest import MANIFEST_NAME
from engine.errors import SkippyError
from engine.model.demo import demo_path
from engine.model.file import ModelFile
from engine.model.packages.folder import Package
from engine.model.slices import is_slice
from engine.protocol.limits import MAX_HELD

log = logging.getLogger("skippy.node")

MAX_FILES = 10_000
"""Most files of a folder that are looked at."""


class ModelFolders:
    """Looks for models in folders, and below them. Files that have not changed are read once."""

    def __init__(self, folders: Iterable[str], files: Iterable[str] = ()) -> None:
        self._folders = [Path(folder).expanduser() for folder in folders]
        self._single = [demo_path(), *map(Path, files)]
        self._known: dict[tuple[Path, int, int], str] = {}  # by path, size and time of change

    def fingerprints(self) -> tuple[str, ...]:
        """Of every model; at most `MAX_HELD`."""
        return tuple({fingerprint: None for fingerprint, _ in self._models()})[:MAX_HELD]

    def find(self, fingerprint: str) -> Path | None:
        """The file of a model, or of one of its shards."""
        return next((path for found, path in self._models() if found == fingerprint), None)

    def packaged(self, fingerprint: str, sha256: str) -> Path | None:
        """The slice with this hash in the folder of a package, undamaged. Raises PackageError."""
        for folder in self._folders:
            for manifest in islice(folder.rglob(MANIFEST_NAME), MAX_FILES):
                try:
                    package = Package.open(manifest.parent)
                except SkippyError as error:
                    log.info("%s is left out: %s", manifest, error)
                    continue
                for item in package.manifest.slices:
                    wanted = item.sha256 == sha256 and package.manifest.model.fingerprint == fingerprint
                    if wanted and package.has(item):
                        return package.path(item)
        return None

    def _models(self) -> Iterator[tuple[str, Path]]:
        for path in self._files():
            try:
                info = path.stat()
            except OSError:
                continue  # gone meanwhile
            key = (path, info.st_size, info.st_mtime_ns)
            if key not in self._known:
                self._known[key] = _fingerprint(path)
            if self._known[key]:
                yield self._known[key], path

    def _files(self) -> Iterator[Path]:
        yield from filter(Path.is_file, self._single)
        for folder in self._folders:
            yield from islice(filter(Path.is_file, folder.rglob("*.gguf")), MAX_FILES)


def _fingerprint(path: Path) -> str:
    """Empty for a file that is no model."""
    try:
        model = ModelFile.open(path)
    except SkippyError as error:
        log.info("%s is left out: %s", path, error)
        return ""
    return "" if is_slice(model) else model.fingerprint
