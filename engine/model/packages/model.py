"""A package as a model: its slices put together again, tensor by tensor, without copying a byte.

The front holds the metadata; every tensor of a slice gets back the name that it has in the model. What is not
on this machine is not among the tensors. So a complete package can be cut anew anywhere, and a part of one
still tells its tokenizer, its sizes and its fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from engine.config.manifest import PackagedModel, PackagedSlice, Problem
from engine.model.file import ModelFile
from engine.model.header import Header, TensorInfo, check_header
from engine.model.packages.folder import Package
from engine.model.slices import EMBEDDING, OUTPUT, SliceFile, ensure_slice, open_slice
from engine.model.writer import Progress

OWN_KEYS = "skippy."
"""Metadata that says something about a file of ours, and nothing about the model."""

FRONT_KEY = OWN_KEYS + "front"
FINGERPRINT_KEY = OWN_KEYS + "fingerprint"

HEAD = f"{OUTPUT}.weight"
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


class PackageModel(ModelFile):
    """The model of a package, of which at least the front is on this machine."""

    def __init__(self, package: Package, progress: Progress | None = None) -> None:
        """Raises PackageError when the front is missing or damaged, or a slice is another one."""
        self.package = package
        front = check_header(package.path(package.manifest.front, progress))
        for problem in front_problems(package, front):
            raise problem.error(package.directory)
        super().__init__([_model_header(front), *self._slices()])
        self.name = package.manifest.model.name

    @property
    def source(self) -> Path:
        """The folder of the package."""
        return self.package.directory

    @cached_property
    def fingerprint(self) -> str:
        """That of the model before it was cut."""
        return self.package.manifest.model.fingerprint

    def cut(
        self, first: int, end: int, *, cache_dir: Path | None = None, progress: Progress | None = None
    ) -> SliceFile:
        """Layers `first` to `end` (not included): the package's own slice, or one that is cut from several.

        Raises PackageError for a slice that is not here or damaged, and what `ensure_slice` raises.
        """
        package = self.package
        own = package.slice_of(first, end)
        if own is not None:
            return open_packaged(package, own, progress)
        for item in package.manifest.slices:
            if item.layers[0] < end and first < item.layers[1]:
                package.path(item, progress)
        return ensure_slice(self, first, end, cache_dir=cache_dir, progress=progress)

    def _slices(self) -> Iterator[Header]:
        """Headers of the slices that are here, with the tensors that the front or another does not have."""
        manifest = self.package.manifest
        seen: set[str] = set()
        for item in manifest.slices:
            if not self.package.has(item):
                continue
            header = check_header(_checked(self.package, item).path)
            named = _named_as_in_the_model(header, item.layers, manifest.model)
            tensors = [tensor for tensor in named if tensor.name not in seen]
            seen.update(tensor.name for tensor in tensors)
            yield replace(header, tensors=tuple(tensors))


def open_packaged(package: Package, item: PackagedSlice, progress: Progress | None = None) -> SliceFile:
    """A slice of the package, found to be undamaged and the one that the manifest means."""
    package.path(item, progress)
    return _checked(package, item)


def _checked(package: Package, item: PackagedSlice) -> SliceFile:
    for problem in slice_problems(package, item):
        raise problem.error(package.directory)
    return open_slice(package.directory / item.path)


def front_problems(package: Package, front: Header) -> Iterator[Problem]:
    """Whether the front says of itself what the manifest says of it."""
    path, fingerprint = package.manifest.front.path, front.metadata.get(FINGERPRINT_KEY)
    if FRONT_KEY not in front.metadata or fingerprint is None:
        yield Problem("not_a_front", "is not the front of a package", path)
    elif fingerprint.decode() != package.manifest.model.fingerprint:
        yield Problem("front_mismatch", "is the front of another model", path)


def slice_problems(package: Package, item: PackagedSlice) -> Iterator[Problem]:
    """Whether a file says of itself what the manifest says of it. Raises ModelFileError if it is no slice."""
    slice_, model = open_slice(package.directory / item.path), package.manifest.model
    if (slice_.first, slice_.end) != item.layers:
        message = f"holds layers {slice_.first}:{slice_.end}, not {item.layers[0]}:{item.layers[1]}"
        yield Problem("slice_mismatch", message, item.path)
    found = (slice_.fingerprint, slice_.architecture, slice_.n_layers, slice_.n_embd)
    if found != (model.fingerprint, model.architecture, model.layers, model.embedding_length):
        yield Problem("slice_mismatch", "is a slice of another model", item.path)


def _model_header(front: Header) -> Header:
    metadata = {key: value for key, value in front.metadata.items() if not key.startswith(OWN_KEYS)}
    return replace(front, metadata=metadata)


def _named_as_in_the_model(
    header: Header, layers: tuple[int, int], model: PackagedModel
) -> Iterator[TensorInfo]:
    """Undo what slicing did to names: padding comes first, then the layers from 0 on, then NextN blocks."""
    first, end = layers
    architecture = header.metadata["general.architecture"].decode()
    n_blocks, n_nextn = (
        header.metadata[f"{architecture}.{key}"].decode() for key in ("block_count", "nextn_predict_layers")
    )
    pads = n_blocks - n_nextn - (end - first)
    for tensor in header.tensors:
        match = _BLOCK.fullmatch(tensor.name)
        if match is None:
            yield from _global_tensor(tensor, header, model, is_last=end == model.layers)
        elif (index := int(match[1]) - pads) >= 0:
            layer = first + index if index < end - first else model.layers + index - (end - first)
            yield replace(tensor, name=f"blk.{layer}.{match[2]}")


def _global_tensor(
    tensor: TensorInfo, header: Header, model: PackagedModel, *, is_last: bool
) -> Iterator[TensorInfo]:
    """A tensor outside the blocks. The front has the token embedding, and the last slice the head, which may
    be called the token embedding there; in other places something else stands in for the two."""
    table = tensor.name.rpartition(".")[0]
    if table not in (EMBEDDING, OUTPUT) or (table == OUTPUT and is_last):
        yield tensor
    elif table == EMBEDDING and is_last and not model.tied and HEAD not in _names(header):
        yield replace(tensor, name=HEAD)


def _names(header: Header) -> set[str]:
    return {tensor.name for tensor in header.tensors}
