"""`skippy-engine models`: what can be run on this machine, and how to get the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from engine.cli.options import config_file_of
from engine.config.layers import read_config_file
from engine.config.manifest import is_package
from engine.errors import SkippyError
from engine.model.demo import DEMO, INSTALL, demo_available, demo_model, demo_path
from engine.model.file import ModelFile
from engine.model.packages.folder import Package

FETCH_DEMO = "skippy-engine models --fetch demo"


def run_models(fetch: str | None, config: str | None, *, as_json: bool) -> int:
    """List the default model and those of `skippy.toml`; with `fetch`, build the default one first."""
    if fetch is not None:
        demo_model(_progress())
    models = [_demo(), *_configured(config_file_of(config))]
    if as_json:
        print(orjson.dumps(models).decode())
    else:
        for model in models:
            print(_line(model))
    return 0


def _demo() -> dict[str, Any]:
    path = demo_path()
    if path.is_file():
        return _described(DEMO, path)
    how = FETCH_DEMO if demo_available() else INSTALL
    return _entry(
        DEMO, path, problem="not built yet" if demo_available() else "its weights are missing", how=how
    )


def _configured(config_file: Path | None) -> list[dict[str, Any]]:
    if config_file is None:
        return []
    models = read_config_file(config_file).models
    return [
        _described(name, Path(layer.values["model"]))
        for name, layer in models.items()
        if layer.values.get("model", DEMO) != DEMO
    ]


def _described(name: str, path: Path) -> dict[str, Any]:
    try:
        if is_package(path):
            return _package(name, Package.open(path))
        if not path.is_file():
            return _entry(name, path, problem="there is no such file")
        model = ModelFile.open(path)
    except SkippyError as error:
        return _entry(name, path, problem=str(error))
    return _entry(name, path, model)


def _package(name: str, package: Package) -> dict[str, Any]:
    """A package can be run where its front is; stages elsewhere may hold the slices that are not here."""
    model = package.manifest.model
    here = [item.layers for item in package.manifest.slices if package.has(item)]
    available = package.has(package.manifest.front)
    return {
        **_entry(name, package.directory, problem="" if available else "its front is not here"),
        "available": available,
        "architecture": model.architecture,
        "layers": model.layers,
        "nextn": model.nextn_layers > 0,
        "slices": [item.layers for item in package.manifest.slices],
        "slices_here": here,
    }


def _entry(
    name: str, path: Path, model: ModelFile | None = None, *, problem: str = "", how: str = ""
) -> dict[str, Any]:
    return {
        "name": name,
        "path": str(path),
        "available": model is not None,
        "architecture": model.architecture if model is not None else None,
        "layers": model.n_layers if model is not None else None,
        "nextn": model.n_nextn > 0 if model is not None else None,
        "slices": None,
        "slices_here": None,
        "problem": problem,
        "how": how,
    }


def _line(model: dict[str, Any]) -> str:
    if not model["available"]:
        how = f"; to get it: {model['how']}" if model["how"] else ""
        return f"{model['name']:<12} {model['problem']}{how} ({model['path']})"
    nextn = "with" if model["nextn"] else "without"
    layers = f"{model['architecture']}, {model['layers']} layers, {nextn} NextN"
    return f"{model['name']:<12} {layers}{_slices(model)}, {model['path']}"


def _slices(model: dict[str, Any]) -> str:
    if model["slices"] is None:
        return ""
    shown = ", ".join(
        f"{first}:{end}" + ("" if (first, end) in model["slices_here"] else " (not here)")
        for first, end in model["slices"]
    )
    return f", package of {shown}"


def _progress() -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(
            f"\rbuilding the default model {done / max(total, 1):.0%}", end=end, file=sys.stderr, flush=True
        )

    return show
