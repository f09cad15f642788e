"""How fast this machine computes the layers of a model, timed on random weights and kept.

A few layers, and the last layer with the head, are run in windows of several sizes. One layer alone tells
what every call costs, however many layers it runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from engine.compute.context import Hidden
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail
from engine.config.plain import from_plain
from engine.errors import CacheError, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.model.paths import cache_dir as default_cache_dir
from engine.planning.describe import describe_model, layer_bytes
from engine.planning.profiles import MIB, WINDOW_ROWS, ComputeCosts, to_plain
from engine.planning.synthetic import Span, TimedModel, measuring_header, open_timed_model, random_slice
from engine.protocol.messages import ConfigureGeneration, SamplingSettings

Job = Callable[[], object]

_SECONDS = 3.0  # that timing takes, or longer if a machine is so slow that ..
_FEWEST = 3  # .. not everything has been timed so often by then
_SHORT, _LONG = 16, 384  # cached tokens when rows are timed
_LONG_ROWS = 8  # rows of the window that is timed after a long text
_CHUNK = 128  # rows of a prefill chunk
_PROFILE_VERSION = 3

# What the thread computed, and not what others did meanwhile, where the clock is fine enough.
_FINE = time.get_clock_info("thread_time").resolution < 1e-5


def compute_costs(
    model: ModelFile, threads: int, *, gpu_layers: int = 0, cache_dir: Path | None = None
) -> ComputeCosts:
    """How fast this machine computes `model`: the kept profile, or a new one, which takes seconds.

    Raises SkippyError where it cannot be measured.
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

    To be called off the event loop, while nothing else computes. Raises SkippyError where it cannot be
    measured.
    """
    directory = cache_dir or default_cache_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="measure-", dir=directory) as scratch:
            return _measured(header, threads, gpu_layers, directory, Path(scratch))
    except OSError as error:
        raise CacheError(
            f"cannot time a model in {directory}: {error.strerror or error}",
            hint="free some space, or point XDG_CACHE_HOME to a directory of yours",
        ) from error


def _measured(header: bytes, threads: int, gpu_layers: int, directory: Path, scratch: Path) -> ComputeCosts:
    timed = open_timed_model(header, scratch)
    kept = _kept_at(directory, timed.fingerprint, threads, gpu_layers)
    costs = _read(kept)
    if costs is None:
        context = _LONG + _CHUNK
        options = ComputeOptions(context, 2, threads, gpu_layers=gpu_layers, batch_rows=_CHUNK)
        costs = _measure(timed, options, scratch)
        _write(kept, costs)
    return costs


class _Stopwatch:
    """Times jobs so that each of them has the same share of the time.

    So all of them are spread over all of it: machines are faster and slower by turns, for seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def us(self, name: str) -> float:
        """The typical time of a job."""
        return median(self.seconds[name]) * 1e6

    def run(self, jobs: dict[str, Job]) -> None:
        spent = dict.fromkeys(jobs, 0.0)
        begun = time.perf_counter()
        while True:
            late = time.perf_counter() - begun > _SECONDS
            waiting = [name for name in jobs if len(self.seconds[name]) < _FEWEST] if late else list(jobs)
            if not waiting:
                return
            name = min(waiting, key=spent.__getitem__)
            start = self._clock()
            jobs[name]()
            took = self._clock() - start
            self.seconds[name].append(took)
            spent[name] += took


def _measure(timed: TimedModel, options: ComputeOptions, scratch: Path) -> ComputeCosts:
    watch = _Stopwatch(time.thread_time if _FINE and not options.gpu_layers else time.perf_counter)
    with ExitStack() as opened:

        def open_stage(span: Span, name: str) -> Stage:
            stage = Stage(random_slice(timed, span, scratch / f"{name}.gguf"), options)
            opened.callback(stage.close)
            return stage

        jobs = _layer_jobs(open_stage(timed.few, "few"))
        jobs |= {"one 1": _single_row(open_stage(timed.one, "one"))}
        jobs |= _tail_jobs(open_stage(timed.last, "last"))
        watch.run(jobs)
    return _costs_of(timed, watch)


def _rows(stage: Stage, rows: int) -> Hidden:
    return np.random.default_rng(rows).standard_normal((rows, stage.n_embd), dtype=np.float32)


def _layer_jobs(stage: Stage) -> dict[str, Job]:
    """Windows and a prefill chunk after a short text, one row and a window after a long one."""
    chunk = _rows(stage, _CHUNK)
    stage.forward(0, 0, hidden=chunk[:_SHORT])
    for start in range(0, _LONG, _CHUNK):
        stage.forward(1, start, hidden=chunk)
    jobs = {f"few {rows}": _job(stage, 0, _SHORT, chunk[:rows]) for rows in (*WINDOW_ROWS, _CHUNK)}
    jobs |= {f"late {rows}": _job(stage, 1, _LONG, chunk[:rows]) for rows in (1, _LONG_ROWS)}
    return jobs


def _single_row(stage: Stage) -> Job:
    rows = _rows(stage, _SHORT + 1)
    stage.forward(0, 0, hidden=rows[:_SHORT])
    return _job(stage, 0, _SHORT, rows[_SHORT:])


def _job(stage: Stage, sequence: int, start: int, hidden: Hidden) -> Job:
    return lambda: stage.forward(sequence, start, hidden=hidden)


def _tail_jobs(stage: Stage) -> dict[str, Job]:
    """Windows on the last stage, with the choice of a token for every row; and one draft."""
    tail = Tail(stage)
    greedy = ConfigureGeneration(0, SamplingSettings(), prompt_length=_SHORT, strategy="auto")
    tail.configure(0, greedy)
    hidden = _rows(stage, _CHUNK)
    tail.prefill(0, 0, [0] * _SHORT, 0, hidden[:_SHORT])

    def verify(rows: int) -> Job:
        return lambda: tail.verify(0, _SHORT, [0] * rows, hidden[:rows], 0)

    jobs: dict[str, Job] = {f"last {rows}": verify(rows) for rows in WINDOW_ROWS}
    if stage.slice.native_mtp:
        jobs["last 1 and draft"] = lambda: tail.verify(0, _SHORT, [0], hidden[:1], 1)
    return jobs


def _costs_of(timed: TimedModel, watch: _Stopwatch) -> ComputeCosts:
    _, read = layer_bytes(timed.model)

    def mib(span: Span) -> float:
        return sum(read[block] for block in timed.blocks(span)) / MIB

    one_us, few_us = watch.us("one 1"), watch.us("few 1")
    per_mib = (few_us - one_us) / (mib(timed.few) - mib(timed.one))
    if per_mib <= 0:
        raise UsageError("the machine is too busy to time a layer")
    call_us = max(0.0, one_us - per_mib * mib(timed.one))
    layer_us = [(watch.us(f"few {rows}") - call_us) / mib(timed.few) for rows in WINDOW_ROWS]
    head_us = [
        max(0.0, watch.us(f"last {rows}") - call_us - us * mib(timed.last))
        for rows, us in zip(WINDOW_ROWS, layer_us, strict=True)
    ]
    layers = describe_model(timed.model).layers
    kv_bytes = sum(layers[block].kv_bytes for block in timed.blocks(timed.few)) * (_LONG - _SHORT)

    def per_cached_mib(rows: int) -> float:
        longer = watch.us(f"late {rows}") - watch.us(f"few {rows}")
        return max(0.0, longer) / rows / (kv_bytes / MIB) if kv_bytes else 0.0

    drafts = "last 1 and draft"
    return ComputeCosts(
        layer_us=tuple(layer_us),
        head_us=tuple(head_us),
        call_us=call_us,
        prefill_us=(watch.us(f"few {_CHUNK}") - call_us) / mib(timed.few) / _CHUNK,
        cached_us=per_cached_mib(1),
        cached_window_us=per_cached_mib(_LONG_ROWS),
        draft_us=max(0.0, watch.us(drafts) - watch.us("last 1")) if drafts in watch.seconds else 0.0,
        fingerprint=timed.fingerprint,
    )


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
