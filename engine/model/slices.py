"""A stage's share of a model: a GGUF of its own that llama.cpp loads like any other.

What a slice holds is decided by `plan_slice`; this module carries the plan out, tensor by tensor as raw
bytes, and keeps the result in the cache. A slice describes itself in its metadata (`skippy.*`), so that a
stage needs nothing but the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.errors import ModelFileError
from engine.model.architectures import SliceRules
from engine.model.cache import cached_file
from engine.model.derived import STAND_IN_ROWS
from engine.model.file import ModelFile
from engine.model.header import ALIGNMENT_KEY, Header, TensorInfo, check_header
from engine.model.paths import cache_dir as default_cache_dir
from engine.model.pruning import mark_used
from engine.model.rebase import (
    ZEROED_IN_IDENTITY,
    SlicePlan,
    TensorChoice,
    nextn_obstacle,
    plan_slice,
    whole_rules,
)
from engine.model.writer import GgufContent, OutputTensor, Progress, copied, encode_value, zeros

SLICER_VERSION = 1
"""Part of the cache key: raised whenever the same plan gives other bytes."""

EMBEDDING = "token_embd"
OUTPUT = "output"
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_SMALLEST_TYPES = (GGMLQuantizationType.Q1_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.F16)
_FIELDS = {
    "skippy.first_layer": GGUFValueType.UINT32,
    "skippy.end_layer": GGUFValueType.UINT32,
    "skippy.n_layers": GGUFValueType.UINT32,
    "skippy.n_embd": GGUFValueType.UINT32,
    "skippy.model_name": GGUFValueType.STRING,
    "skippy.fingerprint": GGUFValueType.STRING,
    "skippy.native_mtp": GGUFValueType.BOOL,
    "skippy.rules": GGUFValueType.STRING,  # JSON of SliceRules
}


@dataclass(frozen=True, slots=True)
class SliceFile:
    """Layers `first` to `end` (not included) of a model, in a GGUF that llama.cpp can load.

    `whole` says that `path` is the model itself and takes tokens; every other slice takes hidden states.
    """

    path: Path
    whole: bool
    first: int
    end: int
    n_layers: int  # of the whole model, without NextN blocks
    n_embd: int
    architecture: str
    model_name: str
    fingerprint: str  # of the whole model
    native_mtp: bool  # the NextN block is here, and drafts can be asked for
    rules: SliceRules
    size: int  # bytes

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.end == self.n_layers


def whole_model(model: ModelFile) -> SliceFile:
    """The model as the only stage, from its own file. Any architecture will do."""
    return SliceFile(
        path=model.path,
        whole=True,
        first=0,
        end=model.n_layers,
        n_layers=model.n_layers,
        n_embd=model.n_embd,
        architecture=model.architecture,
        model_name=model.name,
        fingerprint=model.fingerprint,
        native_mtp=not nextn_obstacle(model),
        rules=whole_rules(model),
        size=sum(path.stat().st_size for path in model.paths),
    )


def ensure_slice(
    model: ModelFile,
    first: int,
    end: int,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> SliceFile:
    """Layers `first` to `end` (not included) as a file in the cache, cut out first if need be.

    Raises UsageError for a range out of bounds, ArchitectureRefused, CutRefused, and CacheError when the
    cache cannot be written.
    """
    plan = plan_slice(model, first, end)
    target = slice_folder(model.fingerprint, cache_dir) / f"layers-{first}-{end}-v{SLICER_VERSION}.gguf"
    cached_file(target, source_of(model, plan), lambda: slice_content(model, plan, first, end), progress)
    mark_used(target)
    return open_slice(target)


def slices_folder(cache_dir: Path | None = None) -> Path:
    """Where the slices of all models are kept, those of each in a folder of its own."""
    return (cache_dir or default_cache_dir()) / "slices"


def slice_folder(fingerprint: str, cache_dir: Path | None = None) -> Path:
    """Where the slices of a model are kept."""
    return slices_folder(cache_dir) / fingerprint


def open_slice(path: Path) -> SliceFile:
    """A slice by its file alone. Raises ModelFileError if it is none."""
    header = check_header(path)
    try:
        fields = [_field(header, key, kind) for key, kind in _FIELDS.items()]
        first, end, n_layers, n_embd, model_name, fingerprint, native_mtp, rules = fields
        slice_ = SliceFile(
            path=path,
            whole=False,
            first=first,
            end=end,
            n_layers=n_layers,
            n_embd=n_embd,
            architecture=_field(header, "general.architecture", GGUFValueType.STRING),
            model_name=model_name,
            fingerprint=fingerprint,
            native_mtp=native_mtp,
            rules=SliceRules.from_json(orjson.loads(rules)),
            size=header.file_size,
        )
        if not first < end <= n_layers:
            raise ValueError(f"layers {first}:{end} of {n_layers}")
    except (KeyError, ValueError, TypeError) as error:
        hint = "cut one from a model: skippy-engine package MODEL.gguf --splits N --out DIR"
        raise ModelFileError(f"{path} is not a slice of this version ({error})", hint=hint) from None
    return slice_


def _field(header: Header, key: str, kind: GGUFValueType) -> Any:
    value = header.metadata[key]
    if value.type is not kind or value.is_array:
        raise TypeError(f"{key} is not of type {kind.name}")
    return value.decode()


def is_slice(model: ModelFile) -> bool:
    """Whether a file is a slice made by this program, not a model."""
    return "skippy.first_layer" in model.metadata


def slice_content(model: ModelFile, plan: SlicePlan, first: int, end: int) -> GgufContent:
    """What the file of a slice holds, by its plan."""
    metadata = {
        key: value.encoded
        for key, value in model.metadata.encoded.items()
        if key not in plan.drop_metadata and key != ALIGNMENT_KEY and not key.startswith("split.")
    }
    metadata |= {key: encode_value(value, kind) for key, (value, kind) in plan.set_metadata.items()}
    rules = orjson.dumps(plan.rules.to_json()).decode()
    own = (first, end, model.n_layers, model.n_embd, model.name, model.fingerprint, plan.native_mtp, rules)
    for (key, kind), value in zip(_FIELDS.items(), own, strict=True):
        metadata[key] = encode_value(value, kind)
    return GgufContent(metadata, list(_tensors(model, plan)))


def source_of(model: ModelFile, plan: SlicePlan) -> str:
    """What a slice depends on: the plan, and the model's files as they are now.

    The fingerprint does not cover the weights; size and time of change notice new ones.
    """
    decisions = [
        [[block.source, block.identity] for block in plan.blocks],
        sorted(plan.set_metadata.items()),
        sorted(plan.drop_metadata),
        [plan.token_embd, plan.output, plan.native_mtp],
        plan.rules.to_json(),
    ]
    digest = hashlib.sha256(orjson.dumps(decisions, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    stamps = [f"plan {digest}"]
    for path in model.paths:
        info = path.stat()
        stamps.append(f"{path.name} {info.st_size} {info.st_mtime_ns}")
    return "; ".join(stamps)


def _tensors(model: ModelFile, plan: SlicePlan) -> Iterator[OutputTensor]:
    by_layer: dict[int, list[tuple[str, TensorInfo]]] = {}
    for tensor in model.tensors.values():
        match = _BLOCK.fullmatch(tensor.name)
        if match:
            by_layer.setdefault(int(match[1]), []).append((match[2], tensor))
        else:
            yield from _global_tensor(model, plan, tensor)
    for index, block in enumerate(plan.blocks):
        if block.source not in by_layer:
            problem = f"{model.path}: no tensor of layer {block.source}"
            raise ModelFileError(problem, hint="the file is damaged: get it again")
        for part, tensor in by_layer[block.source]:
            name = f"blk.{index}.{part}"
            if block.identity and part in ZEROED_IN_IDENTITY:
                yield zeros(name, tensor.shape, tensor.type)
            else:
                yield copied(tensor, name)


def _global_tensor(model: ModelFile, plan: SlicePlan, tensor: TensorInfo) -> Iterator[OutputTensor]:
    """A tensor outside the blocks: copied, unless it is the token embedding or the head (weight or bias)."""
    table = tensor.name.rpartition(".")[0]
    if table == EMBEDDING:
        yield from _chosen(model, plan.token_embd, tensor)
    elif table == OUTPUT:
        yield from _chosen(model, plan.output, tensor)
    else:
        yield copied(tensor, tensor.name)


def _chosen(model: ModelFile, choice: TensorChoice, tensor: TensorInfo) -> Iterator[OutputTensor]:
    if choice == "full":
        yield copied(tensor, tensor.name)
    elif choice == "stub":
        yield copied(tensor, tensor.name, rows=min(STAND_IN_ROWS, tensor.shape[-1]))
    elif choice == "zero":
        yield zeros(tensor.name, tensor.shape, _smallest_type(tensor.shape[0]))
    elif choice == "from_output":
        yield copied(model.tensors[f"{OUTPUT}.weight"], tensor.name)


def _smallest_type(row_length: int) -> GGMLQuantizationType:
    return next(kind for kind in _SMALLEST_TYPES if row_length % GGML_QUANT_SIZES[kind][0] == 0)
