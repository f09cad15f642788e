"""`skippy-engine bench --budget`: what each microsecond of a plain token is."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict

import orjson

from engine.bench.budget import Budget, measure_budgets
from engine.bench.machine import machine, processor
from engine.bench.report import table
from engine.cli.interrupts import Interrupts
from engine.cli.options import flags_of
from engine.cli.pages import page_of
from engine.config.plan import RunPlan
from engine.config.resolve import resolve_plan
from engine.errors import UsageError
from engine.model.demo import resolve_model
from engine.model.file import ModelFile
from engine.planning.balance import balanced_split

_ANSWERS = 3
_DEFAULTS = {"threads": 1, "context": 1024, "max_tokens": 128, "strategy": "disabled"}


def run_budget(arguments: argparse.Namespace) -> int:
    """Measure, print, and write the tables where `--write` says. Raises SkippyError."""
    page = page_of(arguments.write, "budget")
    given = {name: value for name, value in flags_of(arguments).items() if value is not None}
    plan = resolve_plan({**_DEFAULTS, **given}, None)
    model = ModelFile.open(resolve_model(plan.model))
    split = plan.topology.split or balanced_split(model, 2, plan.compute.threads)
    if len(split) != 1:
        raise UsageError("--budget is about one stage and two", hint="give one cut, or none")
    print("measuring one stage, then two", file=sys.stderr, flush=True)
    budgets = asyncio.run(_measured(plan, split[0]))
    text = to_markdown(budgets, split[0])
    if page is not None:
        page.write(text)
    if arguments.json:
        print(orjson.dumps({"machine": machine(), "budgets": [asdict(item) for item in budgets]}).decode())
    else:
        print(text)
    return 0


async def _measured(plan: RunPlan, split: int) -> list[Budget]:
    with Interrupts() as interrupts:
        work = measure_budgets(plan, split, answers=_ANSWERS, tokens=plan.generation.max_tokens)
        return await interrupts.guard(work)


def to_markdown(budgets: list[Budget], split: int) -> str:
    """Two tables for each budget: the way of a token, and the processor time of each thread."""
    parts = [
        f"Measured {time.strftime('%Y-%m-%d')} on {processor()}, {machine()['cores']} cores, by "
        f"`skippy-engine bench --budget`, cut before layer {split}. Medians over tokens, with the range of "
        "the middle nine tenths; microseconds."
    ]
    for item in budgets:
        rows = [
            [step.process, step.what, f"{step.median_us:.0f}", f"{step.low_us:.0f} - {step.high_us:.0f}"]
            for step in item.steps
        ]
        other = sum(step.median_us for step in item.steps if not step.is_llama)
        rows.append(["", "all steps but llama.cpp", f"{other:.0f}", ""])
        rows.append(["", "of that, noting all this", f"{item.marking_us:.0f}", ""])
        rows.append(["", "a token, whole", f"{item.token_us:.0f}", ""])
        title = f"### {item.name.capitalize()}, {item.tokens} tokens"
        parts.append(f"{title}\n\n{table(['process', 'step', 'µs', 'range'], rows)}")
        work = [[one.process, one.thread, f"{one.llama_us:.0f}", f"{one.python_us:.0f}"] for one in item.work]
        heads = ["process", "thread", "llama.cpp", "all else"]
        parts.append(f"Processor time of a token:\n\n{table(heads, work)}")
    return "\n\n".join(parts)
