"""Looking a package over before it is used: every problem at once, each with a code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.config.manifest import (
    BrokenPackage,
    Manifest,
    PackagedFile,
    PackagedSlice,
    Problem,
    parse_manifest,
)
from engine.config.package_rules import is_safe, manifest_problems
from engine.errors import ModelFileError
from engine.model.header import check_header
from engine.model.packages.folder import Package, file_problems, hash_problems, share_of
from engine.model.packages.model import PackageModel, front_problems, slice_problems
from engine.model.writer import Progress


@dataclass(frozen=True, slots=True)
class PackageReport:
    """What was found. `missing` are files that are not on this machine, which a partial package may lack."""

    directory: Path
    manifest: Manifest | None
    checked: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def good(self) -> bool:
        return not self.problems


def check_package(
    directory: Path, *, partial: bool = False, progress: Progress | None = None
) -> PackageReport:
    """Check the manifest, then each file: path, size, SHA-256, header, and what it says of itself.

    With `partial`, files that are not here are no problem, as long as one is.
    """
    try:
        manifest = parse_manifest(directory)
    except BrokenPackage as error:
        return PackageReport(directory, None, (), (), (error.problem,))
    problems = list(manifest_problems(manifest))
    package = Package(directory, manifest)
    present = [file for file in manifest.files if is_safe(file.path) and package.has(file)]
    missing = tuple(file.path for file in manifest.files if is_safe(file.path) and not package.has(file))
    if partial and present:
        files: tuple[PackagedFile | PackagedSlice, ...] = tuple(present)
    else:
        files = tuple(file for file in manifest.files if is_safe(file.path))
    total = sum(file.bytes for file in files)
    done = 0
    for file in files:
        problems += _of_file(package, file, share_of(progress, done, total))
        done += file.bytes
    if not problems and manifest.front.path not in missing:
        problems += _as_a_model(package)
    return PackageReport(directory, manifest, tuple(file.path for file in present), missing, tuple(problems))


def _of_file(
    package: Package, file: PackagedFile | PackagedSlice, progress: Progress | None
) -> Iterator[Problem]:
    at_first_sight = list(file_problems(package.directory, file))
    if at_first_sight:
        yield from at_first_sight
        return
    damaged = list(hash_problems(package.directory, file, progress))
    yield from damaged
    if damaged:
        return
    try:
        if isinstance(file, PackagedSlice):
            yield from slice_problems(package, file)
        else:
            yield from front_problems(package, check_header(package.directory / file.path))
    except ModelFileError as error:
        yield Problem("not_a_slice", error.message, file.path)


def _as_a_model(package: Package) -> Iterator[Problem]:
    """Put it together, as a run does."""
    try:
        PackageModel(package)
    except BrokenPackage as error:
        yield error.problem
    except ModelFileError as error:
        yield Problem("not_a_model", error.message, package.manifest.front.path)
