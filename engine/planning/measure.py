"""How fast this machine computes the layers of a model, timed on random weights and kept.

A few layers, one layer, and the last layer with the head are run in windows of several sizes. The difference
of the first two is free of what every call costs, however many layers it runs.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from engine.compute.context import Hidden
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.config.plain import from_plain
from engine.errors import SkippyError, UsageError
from engine.model.file import ModelFile
from engine.model.paths import cache_dir as default_cache_dir
from engine.planning.describe import describe_model, layer_bytes
from engine.planning.profiles import MIB, WINDOW_ROWS, ByRows, ComputeCosts, to_plain
from engine.planning.synthetic import Span, TimedModel, measuring_header, open_timed_model, random_slice
from engine.protocol.messages import ConfigureGeneration, SamplingSettings

log = logging.getLogger("skippy.planning")

_ROUNDS = 20
_SECONDS = 1.5  # after which no further round begins, once there are a few
_FEWEST_ROUNDS = 3
_SHORT, _LONG = 16, 512  # cached tokens when rows are timed
_CHUNK = 128  # rows of a prefill chunk
_PROFILE_VERSION = 2

# What the thread computed, and not what others did meanwhile, where the clock is fine enough.
_FINE = time.get_clock_info("thread_time").resolution < 1e-5


def compute_costs(
    model: ModelFile, threads: int, *, gpu_layers: int = 0, cache_dir: Path | None = None
) -> ComputeCosts:
    """How fast this machine computes `model`: the kept profile, or a new one, which takes seconds.

    Raises SkippyError or OSError where it cannot be measured.
    """
    directory = cache_dir or default_cache_dir()
    kept = _kept_at(directory, model.fingerprint, threads, gpu_layers)
    return _read(kept) or measure_costs(
        measuring_header(model), threads, gpu_layers=gpu_layers, cache_dir=cache_dir
    )


def measure_costs(
    header: bytes, threads: int, *, gpu_layers: int = 0, cache_dir: Path | None = None
) -> ComputeCosts:
    """The same for a model that is not here, by its `measuring_header`. Takes seconds and keeps the result.

    To be called off the event loop, while nothing else computes. Raises SkippyError or OSError where it
    cannot be measured.
    """
    directory = cache_dir or default_cache_dir()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="measure-", dir=directory) as scratch:
        timed = open_timed_model(header, Path(scratch))
        kept = _kept_at(directory, timed.fingerprint, threads, gpu_layers)
        costs = _read(kept)
        if costs is None:
            costs = _measure(
                timed,
                ComputeOptions(
                    context=_LONG + _CHUNK,
                    sequences=2,
                    threads=threads,
                    gpu_layers=gpu_layers,
                    batch_rows=_CHUNK,
                ),
                Path(scratch),
            )
            _write(kept, costs)
    return costs


@dataclass
class _Times:
    """Seconds by what was timed. Whatever else a machine does makes a measurement longer and never shorter,
    so the typical value is taken from the lower third."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def us(self, name: str) -> float:
        values = sorted(self.seconds[name])
        return values[len(values) // 3] * 1e6


def _measure(timed: TimedModel, options: ComputeOptions, scratch: Path) -> ComputeCosts:
    clock = time.thread_time if _FINE and not options.gpu_layers else time.perf_counter
    times = _Times()
    with ExitStack() as opened:

        def open_stage(span: Span, name: str) -> Stage:
            stage = Stage(random_slice(timed, span, scratch / f"{name}.gguf"), options)
            opened.callback(stage.close)
            return stage

        jobs = _middle_jobs(open_stage(timed.one, "one"), "one", long=True)
        jobs |= _middle_jobs(open_stage(timed.few, "few"), "few", long=False)
        jobs |= _tail_jobs(open_stage(timed.last, "last"), times)
        begun = time.perf_counter()
        for number in range(_ROUNDS):  # by turns, so that a disturbance hits all of them
            if number >= _FEWEST_ROUNDS and time.perf_counter() - begun > _SECONDS:
                break
            for name, job in jobs.items():
                start = clock()
                job()
                times.seconds[name].append(clock() - start)
    return _costs_of(timed, times)


Job = Callable[[], object]


def _rows(stage: Stage, rows: int) -> Hidden:
    return np.random.default_rng(rows).standard_normal((rows, stage.n_embd), dtype=np.float32)


def _middle_jobs(stage: Stage, name: str, *, long: bool) -> dict[str, Job]:
    """Windows after a short text, a prefill chunk, and a single row after a long text."""
    chunk = _rows(stage, _CHUNK)
    stage.forward(0, 0, hidden=chunk[:_SHORT])
    jobs: dict[str, Job] = {}
    for rows in (*WINDOW_ROWS, _CHUNK):
        jobs[f"{name} {rows}"] = _job(stage, 0, _SHORT, chunk[:rows])
    if long:
        for start in range(0, _LONG, _CHUNK):
            stage.forward(1, start, hidden=chunk)
        jobs[f"{name} long"] = _job(stage, 1, _LONG, chunk[:1])
    return jobs


def _job(stage: Stage, sequence: int, start: int, hidden: Hidden) -> Job:
    return lambda: stage.forward(sequence, start, hidden=hidden)


def _tail_jobs(stage: Stage, times: _Times) -> dict[str, Job]:
    """Windows on the last stage, with the choice of a token for every row; and one draft."""
    tail = Tail(stage)
    greedy = ConfigureGeneration(0, SamplingSettings(), prompt_length=_SHORT, strategy="auto")
    tail.configure(0, greedy)
    hidden = _rows(stage, _CHUNK)
    tail.prefill(0, 0, [0] * _SHORT, 0, hidden[:_SHORT])

    def verify(rows: int) -> Job:
        return lambda: tail.verify(0, _SHORT, [0] * rows, hidden[:rows], 0)

    def draft() -> None:
        drafted = tail.verify(0, _SHORT, [0], hidden[:1], 1)[1]
        if drafted is not None:
            times.seconds["draft"].append(drafted.head_us / 1e6)

    jobs: dict[str, Job] = {f"last {rows}": verify(rows) for rows in WINDOW_ROWS}
    if stage.slice.native_mtp:
        jobs["last and draft"] = draft
    return jobs


def _costs_of(timed: TimedModel, times: _Times) -> ComputeCosts:
    _, read = layer_bytes(timed.model)

    def mib(span: Span) -> float:
        return sum(read[block] for block in timed.blocks(span)) / MIB

    more = mib(timed.few) - mib(timed.one)

    def per_mib(rows: int) -> float:
        return (times.us(f"few {rows}") - times.us(f"one {rows}")) / more

    layer_us = tuple(per_mib(rows) for rows in WINDOW_ROWS)
    if min(layer_us) <= 0:
        raise UsageError("the machine is too busy to time a layer")
    call_us = max(0.0, times.us("one 1") - layer_us[0] * mib(timed.one))
    head_us = tuple(
        max(0.0, times.us(f"last {rows}") - call_us - us * mib(timed.last))
        for rows, us in zip(WINDOW_ROWS, layer_us, strict=True)
    )
    layers = describe_model(timed.model).layers
    cached = sum(layers[block].kv_bytes for block in timed.blocks(timed.one)) * (_LONG - _SHORT) / MIB
    return ComputeCosts(
        layer_us=_by_rows(layer_us),
        head_us=_by_rows(head_us),
        call_us=call_us,
        prefill_us=max(0.0, per_mib(_CHUNK) / _CHUNK),
        cached_us=max(0.0, times.us("one long") - times.us("one 1")) / cached if cached else 0.0,
        draft_us=times.us("draft") if times.seconds["draft"] else 0.0,
        fingerprint=timed.fingerprint,
    )


def _by_rows(values: tuple[float, ...]) -> ByRows:
    one, two, four, eight, sixteen = values
    return one, two, four, eight, sixteen


def _kept_at(directory: Path, fingerprint: str, threads: int, gpu_layers: int) -> Path:
    device = f"-gpu{gpu_layers}" if gpu_layers else ""
    name = f"{fingerprint}-{threads}-threads{device}-v{_PROFILE_VERSION}.json"
    return directory / "profiles" / name


def _read(path: Path) -> ComputeCosts | None:
    try:
        return from_plain(ComputeCosts, orjson.loads(path.read_bytes()), path.name)
    except (OSError, ValueError, SkippyError):
        return None


def _write(path: Path, costs: ComputeCosts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(orjson.dumps(to_plain(costs)))
    unfinished.replace(path)
