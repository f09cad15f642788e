"""What the app costs an answer: one engine, the same prompt asked without and with the app, in turn.

`python -m tests.bench.attached` starts the default model in two local stages. Each round asks once from here,
as `skippy-prompt` does, and once from the app, on a terminal of its own that is there for this answer; nobody
else watches. It asserts nothing: machines are noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.cli.setup import request_of
from engine.client.client import EngineClient, RunningEngine
from engine.client.process import EngineProcess
from engine.config.plan import RunPlan
from engine.config.resolve import resolve_plan
from engine.events import RequestFinished
from skippy_tui.launch import CHATS_FILE
from skippy_tui.store import Store
from tests.bench.app_terminal import AppTerminal
from tests.bench.asking import ready

PROMPTS = (
    "Write a Python function that checks if a number is prime.",
    "Write a short story about a dragon and a knight.",
    "List five healthy breakfast ideas.",
)
WARM_UP = "Show the shortest program in Python."
SETTLE_SECONDS = 1.0
NEW_CHAT = "\x0e"  # Ctrl+N


PATIENCE = 60.0  # seconds, for one answer


@dataclass(frozen=True)
class Answered:
    """One answer."""

    text: str
    tokens: int
    speed: float  # tokens per second
    share: float = 0.0  # of a core, that the app took while it came
    cost: float = 0.0  # ms of processor time of the app for a token


async def asked_here(engine: RunningEngine, plan: RunPlan, prompt: str, session: str) -> Answered:
    async with EngineClient(engine) as client:
        await ready(client)
        # What the engine learned from the answer before decides how it drafts: it is the same one in the app.
        await generated(client, plan, WARM_UP, f"{session}-warm-up")
        await asyncio.sleep(2 * SETTLE_SECONDS)
        return await generated(client, plan, prompt, session)


async def generated(client: EngineClient, plan: RunPlan, prompt: str, session: str) -> Answered:
    async for event in client.generate(request_of(plan, [{"role": "user", "content": prompt}], session)):
        if isinstance(event, RequestFinished):
            return answered(event.result["text"], event.result)
    raise AssertionError("no end")


async def asked_in_the_app(attach: list[str], home: Path, prompt: str, size: tuple[int, int]) -> Answered:
    async with AppTerminal(attach, home, size) as app:
        await app.seen("is ready")
        # What is loaded once, for instance to colour code, is no cost of this answer.
        app.type(f"{WARM_UP}\r")
        await app.seen("first after")
        await asyncio.sleep(SETTLE_SECONDS)  # no new chat before this one is kept
        app.type(f"{NEW_CHAT}{prompt}")
        await asyncio.sleep(SETTLE_SECONDS)
        begun, used = time.monotonic(), app.cpu_seconds
        app.type("\r")
        async with asyncio.timeout(PATIENCE):
            while (kept := kept_answer(home, prompt)) is None:
                await asyncio.sleep(SETTLE_SECONDS / 4)
        used = app.cpu_seconds - used
    return replace(kept, share=used / (time.monotonic() - begun), cost=used * 1000 / kept.tokens)


def kept_answer(home: Path, prompt: str) -> Answered | None:
    """The answer to `prompt` among the chats that the app keeps, once it is there. (The screen does not tell:
    the figures of the answer before are drawn again when it changes.)"""
    store = Store(home / "skippy" / CHATS_FILE)
    try:
        chat = store.load(store.summaries()[0].id)
    finally:
        store.close()
    if chat is None or len(chat.turns) < 2 or chat.turns[0].content != prompt:
        return None
    turn = chat.turns[-1]
    return answered(turn.content, turn.result) if turn.result else None


def answered(text: str, result: Mapping[str, Any]) -> Answered:
    assert result["finish_reason"] in ("stop", "length"), result
    return Answered(text, result["timings"]["predicted_n"], result["timings"]["predicted_per_second"])


async def run(arguments: argparse.Namespace) -> None:
    flags = {
        "threads": "1",
        "strategy": arguments.strategy,
        "max_tokens": str(arguments.tokens),
        "emulate_rtt_ms": str(arguments.rtt),
    }
    plan = resolve_plan(flags, None)
    size = (120, 40) if arguments.wide else (80, 24)
    ratios: list[float] = []
    costs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        process = await EngineProcess.start(plan, home / "engine.log")
        token_file = home / "token"
        token_file.write_text(process.token)
        attach = [
            "--attach",
            process.url,
            "--token-file",
            str(token_file),
            "--max-tokens",
            flags["max_tokens"],
        ]
        engine = RunningEngine(process.url, process.token)
        try:
            for number in range(-1, arguments.rounds):
                prompt = PROMPTS[number % len(PROMPTS)]
                # In turn, so that neither always comes after the other.
                if number % 2:
                    watched = await asked_in_the_app(attach, home / str(number), prompt, size)
                alone = await asked_here(engine, plan, prompt, f"here-{number}")
                if not number % 2:
                    watched = await asked_in_the_app(attach, home / str(number), prompt, size)
                ratio = watched.speed / alone.speed
                print(
                    f"alone {alone.speed:6.1f} tok/s   with the app {watched.speed:6.1f}   {ratio:.3f}"
                    f"   app {watched.share:4.0%} of a core, {watched.cost:.2f} ms a token"
                    f"{'' if alone.text == watched.text else '   another text!'}"
                    f"{'   (warming up)' if number < 0 else ''}",
                    flush=True,
                )
                if number >= 0:
                    ratios.append(ratio)
                    costs.append(watched.cost)
        finally:
            await process.stop()
    print(f"median {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")
    print(f"the app: median {statistics.median(costs):.2f} ms a token")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--rtt", type=float, default=0.0)
    parser.add_argument("--narrow", dest="wide", action="store_false", help="80x24 instead of 120x40")
    asyncio.run(run(parser.parse_args()))
