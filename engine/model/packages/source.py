"""What `--model` names, opened: a GGUF file, the default model, or a package."""

from __future__ import annotations

from pathlib import Path

from engine.config.manifest import Problem, is_package
from engine.errors import UsageError
from engine.model.demo import resolve_model
from engine.model.file import ModelFile
from engine.model.packages.folder import Package
from engine.model.packages.model import FRONT_KEY, PackageModel, open_packaged
from engine.model.slices import SliceFile, ensure_slice, is_slice, open_slice, whole_model
from engine.model.writer import Progress


def open_model(name: str, progress: Progress | None = None) -> ModelFile:
    """A model by name, file or package folder.

    Raises ModelFileError, and PackageError for a package without its front or with a damaged one.
    """
    directory = Path(name).expanduser()
    if is_package(directory):
        return PackageModel(Package.open(directory), progress)
    return _file(name, progress)


def cut_of(
    model: ModelFile,
    first: int,
    end: int,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> SliceFile:
    """Layers `first` to `end` (not included) of a model from wherever they are: its own file if that is all
    of them, the slice of its package, or the cache."""
    if isinstance(model, PackageModel):
        return model.cut(first, end, cache_dir=cache_dir, progress=progress)
    if (first, end) == (0, model.n_layers):
        return whole_model(model)
    return ensure_slice(model, first, end, cache_dir=cache_dir, progress=progress)


def open_stage(
    name: str, first: int, end: int, progress: Progress | None = None
) -> tuple[SliceFile, ModelFile | None]:
    """Layers `first` to `end` (not included; -1: through the last) for a stage.

    The second is the model that holds the token embedding, for a slice that begins with layer 0 and is not
    the whole model. `name` may also be a slice file that was cut before. Raises SkippyError.
    """
    directory = Path(name).expanduser()
    if is_package(directory):
        return _of_package(Package.open(directory), first, end, progress)
    model = _file(name, progress)
    if is_slice(model):
        return _given_by_hand(model, first, end), None
    slice_ = cut_of(model, first, model.n_layers if end == -1 else end, progress=progress)
    return slice_, model if slice_.is_first and not slice_.whole else None


def _file(name: str, progress: Progress | None) -> ModelFile:
    model = ModelFile.open(resolve_model(name, progress))
    if FRONT_KEY in model.metadata:
        hint = f"give the folder, {model.path.parent}"
        raise UsageError(f"{model.path} is the front of a package, which holds no layers", hint=hint)
    return model


def _of_package(
    package: Package, first: int, end: int, progress: Progress | None
) -> tuple[SliceFile, ModelFile | None]:
    """A stage behind the first may have nothing of the package but its own slice."""
    end = package.manifest.model.layers if end == -1 else end
    own = package.slice_of(first, end)
    if own is not None and first > 0:
        return open_packaged(package, own, progress), None
    if not package.has(package.manifest.front):
        need = "the token embedding" if first == 0 else f"what layers {first}:{end} are cut anew with"
        spans = ", ".join(f"{a}:{b}" for a, b in (item.layers for item in package.manifest.slices))
        hint = f"copy it here, or use --layers of the package: {spans}"
        message = f"is not here, and holds {need}"
        raise Problem("missing_file", message, package.manifest.front.path, hint).error(package.directory)
    model = PackageModel(package, progress)
    return model.cut(first, end, progress=progress), model if first == 0 else None


def _given_by_hand(model: ModelFile, first: int, end: int) -> SliceFile:
    slice_ = open_slice(model.path)
    end = slice_.end if end == -1 else end
    if (first, end) != (slice_.first, slice_.end):
        raise UsageError(
            f"{model.path.name} holds layers {slice_.first}:{slice_.end}, not {first}:{end}",
            hint=f"use --layers {slice_.first}:{slice_.end}",
        )
    if slice_.is_first:
        raise UsageError(
            f"{model.path.name} has no token embedding",
            hint="a stage that begins with layer 0 needs the model itself, or its package with the front",
        )
    return slice_
