"""Where to cut a model so that its stages take equally long.

Layers are not equal: the last stage also computes the head, which costs as much as several layers of a small
model. So a few small slices are timed, once for each model and number of threads; the result is kept.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import orjson

from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.errors import CutRefused, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.model.paths import cache_dir as default_cache_dir
from engine.model.rebase import plan_slice
from engine.model.slices import ensure_slice

log = logging.getLogger("skippy.planning")

_LAYER = re.compile(r"blk\.(\d+)\.")
_ROUNDS = 20
_PREFIX = 16  # cached tokens when a row is timed
_SLICE_BYTES = 1 << 28  # of the layers that are sliced to be timed

# What the thread computed, and not what others did meanwhile, where the clock is fine enough.
_FINE = time.get_clock_info("thread_time").resolution < 1e-5
_clock = time.thread_time if _FINE else time.perf_counter


@dataclass(frozen=True, slots=True)
class CostProfile:
    """What one row costs in each layer and in the head: microseconds, or bytes read if not measured."""

    layers: tuple[float, ...]
    head: float
    measured: bool

    def stage_cost(self, first: int, end: int) -> float:
        return sum(self.layers[first:end]) + (self.head if end == len(self.layers) else 0.0)


def balanced_split(
    model: ModelFile, stages: int, threads: int, *, cache_dir: Path | None = None
) -> tuple[int, ...]:
    """First layers of stages 1.., such that the slowest of the stages is as fast as can be.

    Measures when it is asked for the first time, which takes about a second; where that is not possible, the
    bytes that a row reads stand for its time. Raises UsageError if there are fewer layers than stages.
    """
    if not 1 <= stages <= model.n_layers:
        raise UsageError(f"{model.name} has {model.n_layers} layers and cannot make {stages} stages")
    if stages == 1:
        return ()
    return best_cuts(cost_profile(model, threads, cache_dir=cache_dir), stages, _allowed_cuts(model))


def cost_profile(model: ModelFile, threads: int, *, cache_dir: Path | None = None) -> CostProfile:
    """The kept profile of a model, or a new one; by bytes if it cannot be measured. Never fails."""
    directory = cache_dir or default_cache_dir()
    kept = directory / "profiles" / f"{model.fingerprint}-{threads}-threads.json"
    profile = _read(kept, model.n_layers)
    if profile is not None:
        return profile
    try:
        directory.mkdir(parents=True, exist_ok=True)
        profile = _measure(model, threads, directory)
        _write(kept, profile)
    except (SkippyError, OSError) as error:
        log.info("the layers of %s cannot be timed, cutting by size: %s", model.name, error)
        profile = profile or _by_bytes(model)
    return profile


def best_cuts(profile: CostProfile, stages: int, allowed: frozenset[int]) -> tuple[int, ...]:
    """The cuts with the smallest (slowest stage, sum of squares), by dynamic programming over layers."""
    n_layers = len(profile.layers)

    @cache
    def best(first: int, parts: int) -> tuple[float, float, tuple[int, ...]]:
        if parts == 1:
            cost = profile.stage_cost(first, n_layers)
            return cost, cost * cost, ()
        options = []
        for cut in range(first + 1, n_layers - parts + 2):
            if cut in allowed:
                cost = profile.stage_cost(first, cut)
                slowest, squares, cuts = best(cut, parts - 1)
                options.append((max(cost, slowest), squares + cost * cost, (cut, *cuts)))
        return min(options, default=(math.inf, math.inf, ()))

    cuts = best(0, stages)[2]
    if len(cuts) != stages - 1:  # not enough layers where it can be cut
        raise CutRefused(f"this model cannot be cut into {stages} stages", hint="use fewer stages")
    return cuts


def _allowed_cuts(model: ModelFile) -> frozenset[int]:
    """The layers before which the model can be cut in two."""
    allowed = set()
    for cut in range(1, model.n_layers):
        try:
            plan_slice(model, 0, cut)
            plan_slice(model, cut, model.n_layers)
        except CutRefused:
            continue
        allowed.add(cut)
    return frozenset(allowed)


def _measure(model: ModelFile, threads: int, directory: Path) -> CostProfile:
    """Time one layer, a few layers, and the last layer with the head.

    The difference of the first two is free of what every call costs, however many layers it runs.
    """
    weights, _ = _bytes_read(model)
    n_layers = model.n_layers
    few = min(n_layers - 1, max(2, min(6, int(_SLICE_BYTES / max(weights)))))
    if few < 2:
        raise UsageError(f"{n_layers} layers are too few to tell their cost from that of a call")
    with tempfile.TemporaryDirectory(dir=directory) as scratch, ExitStack() as opened:
        table = EmbeddingTable(model)
        options = ComputeOptions(context=_PREFIX + 1, threads=threads, batch_rows=_PREFIX)
        timed = []
        for first, end in ((0, 1), (0, few), (n_layers - 1, n_layers)):
            part = ensure_slice(model, first, end, cache_dir=Path(scratch))
            stage = Stage(part, options, embeddings=table if part.is_first else None)
            opened.callback(stage.close)
            timed.append(_Timed(stage, table))
        for _ in range(_ROUNDS):  # by turns, so that a disturbance hits all of them
            for each in timed:
                each.run_once()
    one, several, last = (each.best_us for each in timed)
    per_byte = (several - one) / sum(weights[1:few])
    if per_byte <= 0:
        raise UsageError("the machine is too busy to time a layer")
    layers = tuple(weight * per_byte for weight in weights)
    call = max(0.0, one - layers[0])
    return CostProfile(layers, max(0.0, last - call - layers[-1]), measured=True)


class _Timed:
    """A stage that runs the same row again and again; the fastest time counts, others had company."""

    def __init__(self, stage: Stage, table: EmbeddingTable) -> None:
        self._stage = stage
        self._first = stage.slice.is_first
        self._rows = table.rows(range(_PREFIX + 1))
        self.best_us = math.inf
        self._forward(0, _PREFIX)

    def run_once(self) -> None:
        begun = _clock()
        self._forward(_PREFIX, _PREFIX + 1)
        self.best_us = min(self.best_us, (_clock() - begun) * 1e6)

    def _forward(self, start: int, end: int) -> None:
        if self._first:
            self._stage.forward(0, start, tokens=range(start, end))
        else:
            self._stage.forward(0, start, hidden=self._rows[start:end])


def _by_bytes(model: ModelFile) -> CostProfile:
    weights, head = _bytes_read(model)
    return CostProfile(tuple(weights), head, measured=False)


def _bytes_read(model: ModelFile) -> tuple[Sequence[float], float]:
    """Bytes that one row reads: of each layer, with the experts that it uses, and of the head."""
    used = model.key("expert_used_count", 1) / max(1, model.key("expert_count", 1))
    weights = [0.0] * model.n_layers
    for tensor in model.tensors.values():
        match = _LAYER.match(tensor.name)
        if match and int(match[1]) < model.n_layers:
            weights[int(match[1])] += tensor.n_bytes * (used if "_exps." in tensor.name else 1.0)
    head = model.tensors.get("output.weight") or model.tensors["token_embd.weight"]
    return weights, float(head.n_bytes)


def _read(path: Path, n_layers: int) -> CostProfile | None:
    try:
        fields = orjson.loads(path.read_bytes())
        profile = CostProfile(tuple(map(float, fields["layers"])), float(fields["head"]), measured=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return profile if len(profile.layers) == n_layers else None


def _write(path: Path, profile: CostProfile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(orjson.dumps(asdict(profile)))
    unfinished.replace(path)
