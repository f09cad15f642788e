"""Cutting a model into a package.

The folder appears under its name only when it is whole: everything is written into a hidden folder beside it,
flushed to the disk and renamed. Tensors are streamed, so memory stays flat however big the model is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from gguf import GGUFValueType

from engine.config.manifest import (
    FORMAT,
    MANIFEST_NAME,
    SCHEMA,
    Generation,
    Manifest,
    PackagedFile,
    PackagedModel,
    PackagedSlice,
)
from engine.errors import PackageError, UsageError
from engine.model.cache import flush_to_disk, free_bytes
from engine.model.file import ModelFile
from engine.model.header import ALIGNMENT_KEY
from engine.model.lock import locked_now
from engine.model.packages.folder import share_of
from engine.model.packages.model import FINGERPRINT_KEY, FRONT_KEY
from engine.model.packages.speculation import describe_speculation
from engine.model.rebase import plan_slice
from engine.model.slices import EMBEDDING, OUTPUT, is_slice, slice_content
from engine.model.writer import GgufContent, Progress, copied, encode_value

FRONT_NAME = "front.gguf"
_LOCK = "lock"


def write_package(
    model: ModelFile,
    splits: Sequence[int],
    out: Path,
    *,
    speculation: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Cut `model` before each layer of `splits` into a new folder `out`; the front comes on top.

    `speculation` holds settings of the table `speculative` that the package is to recommend. Raises
    UsageError for wrong cuts and for a folder that is not empty, ArchitectureRefused, CutRefused, and
    PackageError (with the codes `disk_full` and `not_written`) when the folder cannot be written.
    """
    if is_slice(model):
        raise UsageError(f"{model.path} is a slice already", hint="give the model it was cut from")
    spans = _spans(model, splits)
    contents = {FRONT_NAME: front_content(model)}
    for first, end in spans:
        contents[f"layers-{first}-{end}.gguf"] = slice_content(
            model, plan_slice(model, first, end), first, end
        )
    generation = Generation(describe_speculation(model, speculation or {}))
    with _new_folder(out, sum(content.n_bytes for content in contents.values())) as folder:
        front, *slices = _write_all(folder, contents, progress)
        manifest = Manifest(
            schema=SCHEMA,
            format=FORMAT,
            model=_describe(model),
            front=front,
            slices=tuple(
                PackagedSlice(file.path, file.bytes, file.sha256, layers)
                for file, layers in zip(slices, spans, strict=True)
            ),
            generation=generation,
        )
        with (folder / MANIFEST_NAME).open("wb") as opened:
            opened.write(manifest.to_json())
            opened.flush()
            flush_to_disk(opened.fileno())
    return manifest


def front_content(model: ModelFile) -> GgufContent:
    """What a machine needs that talks to people and computes no layer: metadata, tokenizer, embedding."""
    metadata = {
        key: value.encoded
        for key, value in model.metadata.encoded.items()
        if key != ALIGNMENT_KEY and not key.startswith("split.")
    }
    metadata[FRONT_KEY] = encode_value(True, GGUFValueType.BOOL)
    metadata[FINGERPRINT_KEY] = encode_value(model.fingerprint, GGUFValueType.STRING)
    name = f"{EMBEDDING}.weight"
    return GgufContent(metadata, [copied(model.tensors[name], name)])


def _spans(model: ModelFile, splits: Sequence[int]) -> list[tuple[int, int]]:
    edges = (0, *splits, model.n_layers)
    if any(a >= b for a, b in pairwise(edges)):
        raise UsageError(
            f"--splits {','.join(map(str, splits))} does not cut {model.n_layers} layers",
            hint=f"give rising numbers between 1 and {model.n_layers - 1}",
        )
    return list(pairwise(edges))


def _describe(model: ModelFile) -> PackagedModel:
    return PackagedModel(
        name=model.name,
        architecture=model.architecture,
        fingerprint=model.fingerprint,
        layers=model.n_layers,
        nextn_layers=model.n_nextn,
        embedding_length=model.n_embd,
        tied=f"{OUTPUT}.weight" not in model.tensors,
    )


def _write_all(
    folder: Path, contents: Mapping[str, GgufContent], progress: Progress | None
) -> list[PackagedFile]:
    """The files one by one; `progress` is told of all of them together."""
    total = sum(content.n_bytes for content in contents.values())
    files: list[PackagedFile] = []
    for name, content in contents.items():
        done = sum(file.bytes for file in files)
        with (folder / name).open("wb") as opened:
            sha256 = content.write(opened, share_of(progress, done, total))
            opened.flush()
            flush_to_disk(opened.fileno())
        files.append(PackagedFile(name, content.n_bytes, sha256))
    return files


@contextmanager
def _new_folder(out: Path, needed: int) -> Iterator[Path]:
    """A folder that is called `out` once the block has ended well; nothing is left of it otherwise."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder", hint="give another --out, or remove it")
    out = out.resolve()
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        with locked_now(unfinished / _LOCK) as held:
            if not held:
                raise UsageError(f"{out} is being written by another process", hint="wait for it")
            try:
                _remove_leftovers(unfinished)
                _check_space(unfinished, needed)
                yield unfinished
                (unfinished / _LOCK).unlink()
                unfinished.replace(out)
                _flush_folder(out.parent)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{out} cannot be written: {reason} (not_written)"
        raise PackageError(message, hint="give an --out on another disk", code="not_written") from error


def _remove_leftovers(folder: Path) -> None:
    """Delete what a killed process had written."""
    for file in folder.iterdir():
        if file.name != _LOCK:
            file.unlink()


def _check_space(folder: Path, needed: int) -> None:
    free = free_bytes(folder)
    if needed > free:
        message = f"{folder.parent} has {free / 1e9:.1f} GB left, and the package needs {needed / 1e9:.1f} GB"
        raise PackageError(f"{message} (disk_full)", hint="give an --out on another disk", code="disk_full")


def _flush_folder(folder: Path) -> None:
    """Put the new name on the disk, where the system lets folders be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            flush_to_disk(descriptor)
        finally:
            os.close(descriptor)
