"""`skippy-engine bench`: strategies against plain decoding and against llama.cpp alone, in one run."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import time
from pathlib import Path

import orjson

import engine.compute  # noqa: F401 - before NumPy
from engine.bench.arms import PLAIN, BenchSettings
from engine.bench.differences import find_differences, reference_of
from engine.bench.netns import delay_by
from engine.bench.plots import svg, terminal
from engine.bench.record import FILE_NAME, Record, recorded_call
from engine.bench.report import RESULT_NAME, Result
from engine.bench.session import Session, Told
from engine.bench.summary import summarize
from engine.bench.workloads import load_suite
from engine.cli.bench_call import given_options, with_recorded
from engine.cli.errors import Interrupted
from engine.cli.gpu import warn_without_gpu
from engine.cli.interrupts import Interrupts
from engine.cli.options import flags_of
from engine.cli.output import Progress
from engine.cli.pages import page_of
from engine.compute.rpc import check_library
from engine.config.plan import STRATEGIES, RunPlan
from engine.config.resolve import resolve_plan
from engine.config.settings import nearest
from engine.errors import SkippyError, UsageError
from engine.model.demo import resolve_model
from engine.model.file import ModelFile
from engine.model.paths import data_dir
from engine.model.slices import whole_model

DEFAULT_STRATEGIES = ("auto", "mtp", "ngram-suffix", "mtp-suffix")
DEFAULT_RTTS = (0.0, 20.0, 100.0)
_DEFAULTS = {"threads": 1, "context": 2048, "max_tokens": 160}


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure, and tell. Raises SkippyError."""
    if arguments.budget:
        from engine.cli.budget import run_budget

        return run_budget(arguments)
    if arguments.compare:
        from engine.cli.bench_compare import run_compare

        return run_compare(arguments)
    resume = arguments.resume or arguments.report
    if resume and arguments.out is None:
        raise UsageError("--resume and --report need the folder of a run", hint="give --out DIR")
    folder = _folder(arguments.out)
    if arguments.report and not (folder / FILE_NAME).exists():
        raise UsageError(f"{folder} holds no run", hint="name the folder that bench --out wrote")
    if resume:
        arguments = with_recorded(arguments, recorded_call(folder))
    page = page_of(arguments.write, "bench")
    plan = resolve_plan({**_DEFAULTS, **_given(arguments)}, None)
    _check_two_stages(arguments, plan)
    if not arguments.report:
        warn_without_gpu(plan.compute.gpu_layers)
    model = ModelFile.open(resolve_model(plan.model))
    native_mtp = whole_model(model).native_mtp
    settings = BenchSettings(
        suite=load_suite(arguments.suite, categories=_words(arguments.category), limit=arguments.limit),
        plan=plan,
        strategies=_strategies(arguments.strategies, plan, native_mtp=native_mtp),
        rtts_ms=_rtts(arguments.rtts),
        repeat=arguments.repeat,
        max_tokens=plan.generation.max_tokens,
        prefill_tokens=arguments.prefill,
        baseline=arguments.baseline,
        netns=delay_by() if arguments.netns else "",
        rpc_library=_rpc_library(arguments.rpc_library),
    )
    session = Session(settings, model, native_mtp=native_mtp)
    try:
        with Record(folder, session.head(), resume=resume, call=given_options(arguments)) as record:
            if not arguments.report:
                asyncio.run(_measure(session, record, folder))
            result = _result(session, record)
    finally:
        session.close()
    if page is not None:
        page.write(result.to_markdown())
    return _tell(result, folder, as_json=arguments.json)


async def _measure(session: Session, record: Record, folder: Path) -> None:
    teller = Teller()
    with Interrupts() as interrupts:
        try:
            await interrupts.guard(session.run(record, teller.measured, teller.say))
        except (Interrupted, asyncio.CancelledError):
            teller.clear()
            print(f"{len(record.measurements)} measurements are kept in {folder}", file=sys.stderr)
            go_on = f"skippy-engine bench --resume --out {shlex.quote(str(folder))}"
            print(f"go on with: {go_on}", file=sys.stderr)
            raise Interrupted from None
    teller.clear()


class Teller:
    """Tells on standard error how far a run is: one line that changes on a terminal, else a line for each
    workload and round."""

    def __init__(self) -> None:
        self._progress = Progress(sys.stderr)
        self._last = ""

    def say(self, text: str) -> None:
        if sys.stderr.isatty():
            self._progress.show(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def measured(self, told: Told) -> None:
        """A measurement has been made."""
        step, one = told.step, told.measurement
        left = time.strftime("%H:%M:%S", time.gmtime(told.seconds_left))
        where = f"round {step.round + 1}, {step.workload.id}"
        if sys.stderr.isatty():
            speed = f", {one.decoded * 1000 / one.decode_ms:.1f} tok/s" if one.decode_ms else ""
            self._progress.show(f"{told.done}/{told.total}, {left} left: {where}, {step.arm.name}{speed}")
        elif where != self._last:
            print(f"{told.done}/{told.total}, {left} left: {where}", file=sys.stderr, flush=True)
        self._last = where

    def clear(self) -> None:
        self._progress.clear()


def _given(arguments: argparse.Namespace) -> dict[str, object]:
    flags = flags_of(arguments)
    return {name: value for name, value in flags.items() if value is not None}


def _words(texts: list[str] | None) -> list[str]:
    """The items of a flag that can be repeated and can hold a list."""
    return [word.strip() for text in texts or [] for word in text.split(",") if word.strip()]


def _strategies(texts: list[str] | None, plan: RunPlan, *, native_mtp: bool) -> tuple[str, ...]:
    asked = list(dict.fromkeys(_words(texts)))
    if not asked:
        return tuple(name for name in DEFAULT_STRATEGIES if native_mtp or not name.startswith("mtp"))
    for name in asked:
        if name not in STRATEGIES:
            raise UsageError(f"--strategies: there is no strategy {name!r}", hint=nearest(name, STRATEGIES))
        if name.startswith("mtp") and not native_mtp:
            raise UsageError(f"--strategies {name} needs a model with a NextN head", hint="leave it out")
        if name == "draft" and not plan.speculation.draft_model:
            raise UsageError("--strategies draft needs a draft model", hint="give --draft-model FILE")
    return tuple(name for name in asked if name != PLAIN)


def _rtts(texts: list[str] | None) -> tuple[float, ...]:
    try:
        found = tuple(dict.fromkeys(float(word) for word in _words(texts))) or DEFAULT_RTTS
    except ValueError:
        raise UsageError(f"--emulate-rtt-ms {','.join(texts or [])} must hold milliseconds") from None
    if not all(0 <= rtt <= 60_000 for rtt in found):
        raise UsageError("--emulate-rtt-ms must hold milliseconds between 0 and 60000")
    return found


def _check_two_stages(arguments: argparse.Namespace, plan: RunPlan) -> None:
    for given, flag in ((arguments.netns, "--netns"), (arguments.rpc_library, "--rpc-library")):
        if given and plan.topology.stages != 2:
            raise UsageError(f"{flag} measures two stages", hint="leave --stages out")


def _rpc_library(name: str | None) -> str:
    if name is None:
        return ""
    path = str(Path(name).expanduser().resolve())
    check_library(path)
    return path


def _folder(out: str | None) -> Path:
    if out is not None:
        return Path(out).expanduser()
    return data_dir() / "bench" / time.strftime("%Y%m%d-%H%M%S")


def _result(session: Session, record: Record) -> Result:
    referenced = {arm.name for arm in session.arms if reference_of(arm, session.arms) is not None}
    return Result(
        head=session.head(),
        date=time.strftime("%Y-%m-%d"),
        summary=summarize(session.arms, record.measurements),
        differences=tuple(find_differences(session, record.measurements)),
        compared=sum(len(one.turns) for one in record.measurements if one.arm in referenced),
    )


def _tell(result: Result, folder: Path, *, as_json: bool) -> int:
    """Write the files beside the record, and print."""
    data = orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2)
    markdown = result.to_markdown()
    for name, content in (
        (RESULT_NAME, data),
        ("report.md", markdown.encode()),
        ("plot.svg", svg(result.summary).encode()),
    ):
        _write(folder / name, content)
    if as_json:
        print(orjson.dumps(result.to_json()).decode())
    else:
        print(markdown)
        print(terminal(result.summary))
    print(f"report.md, result.json, plot.svg and measurements.jsonl are in {folder}", file=sys.stderr)
    return 0


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    except OSError as error:
        raise SkippyError(f"cannot write {path}: {error.strerror or error}") from error
