"""`skippy-engine package`: cut a model into a folder of slices, or check such a folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from engine.cli.package_options import RECOMMENDED
from engine.config.layers import layer_of_flags
from engine.config.manifest import Manifest
from engine.config.settings import SETTINGS
from engine.errors import EXIT_FAILED, EXIT_OK, UsageError
from engine.model.packages.check import PackageReport, check_package
from engine.model.packages.source import open_model
from engine.model.packages.write import write_package


def run_package(arguments: argparse.Namespace) -> int:
    """Write or check a package; 1 when the check finds a problem. Raises SkippyError."""
    if arguments.check is not None:
        return _check(arguments)
    if arguments.partial:
        raise UsageError("--partial goes with --check")
    for flag, value in {
        "MODEL": arguments.model,
        "--splits": arguments.splits,
        "--out": arguments.out,
    }.items():
        if value is None:
            raise UsageError(f"package needs {flag}", hint="package FILE.gguf --splits 15 --out DIR")
    try:
        splits = SETTINGS["split"].kind.parse(arguments.splits)
    except ValueError as error:
        raise UsageError(f"--splits {error}") from error
    said = layer_of_flags({setting.name: getattr(arguments, setting.name) for setting in RECOMMENDED})
    out = Path(arguments.out).expanduser()
    model = open_model(arguments.model, _progress("building the default model"))
    progress = _progress("writing the package")
    manifest = write_package(model, splits, out, speculation=said.values, progress=progress)
    if arguments.json:
        print(orjson.dumps({"package": str(out), **_summary(manifest)}).decode())
    else:
        _print_written(out, manifest)
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    given = {
        "a model": arguments.model,
        "--splits": arguments.splits,
        "--out": arguments.out,
        **{setting.flag: getattr(arguments, setting.name) for setting in RECOMMENDED},
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--check takes a package, not {name}")
    directory = Path(arguments.check).expanduser()
    report = check_package(directory, partial=arguments.partial, progress=_progress("checking the package"))
    if arguments.json:
        print(orjson.dumps(_report(report)).decode())
    else:
        _print_report(report)
    return EXIT_OK if report.good else EXIT_FAILED


def _summary(manifest: Manifest) -> dict[str, Any]:
    speculative = manifest.generation.speculative_decoding
    return {
        "name": manifest.model.name,
        "architecture": manifest.model.architecture,
        "fingerprint": manifest.model.fingerprint,
        "layers": manifest.model.layers,
        "splits": manifest.cuts,
        "strategies": list(speculative.strategies) if speculative is not None else [],
        "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in manifest.files],
    }


def _report(report: PackageReport) -> dict[str, Any]:
    return {
        "package": str(report.directory),
        "good": report.good,
        "problems": [
            {"code": item.code, "path": item.path, "message": item.message, "hint": item.hint}
            for item in report.problems
        ],
        "checked": report.checked,
        "missing": report.missing,
        **(_summary(report.manifest) if report.manifest is not None else {}),
    }


def _print_written(out: Path, manifest: Manifest) -> None:
    spans = ", ".join(f"{first}:{end}" for first, end in (item.layers for item in manifest.slices))
    print(f"{out}: {manifest.model.name}, layers {spans}, {_megabytes(manifest):.1f} MB")


def _print_report(report: PackageReport) -> None:
    for item in report.problems:
        print(f"{item.path}: {item.message} ({item.code}); {item.hint}")
    if report.good and report.manifest is not None:
        absent = f"; not here: {', '.join(report.missing)}" if report.missing else ""
        model = report.manifest.model
        print(f"{report.directory}: good, {model.name}, {len(report.checked)} files{absent}")
    else:
        count = len(report.problems)
        print(f"{report.directory}: {count} problem{'s' if count > 1 else ''}")


def _megabytes(manifest: Manifest) -> float:
    return sum(file.bytes for file in manifest.files) / 1e6


def _progress(what: str) -> Callable[[int, int], None] | None:
    """A line on a terminal, redrawn when the percentage changes."""
    if not sys.stderr.isatty():
        return None
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = int(100 * done / max(total, 1))
        if percent != shown:
            shown = percent
            end = "\r\x1b[K" if done >= total else ""
            print(f"\r{what} {percent}%{end}", end="", file=sys.stderr, flush=True)

    return show
