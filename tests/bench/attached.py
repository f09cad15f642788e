"""What the app costs an answer: one engine, the same prompt asked without and with the app, in turn.

`python -m tests.bench.attached` starts the default model in two local stages. Each round asks once from here,
with nobody else watching, and once from the app, on a terminal of its own that is there for this one answer.
Both answers are read here, so the app's rounds carry this reader as well. It asserts nothing: machines are
noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

from engine.cli.setup import request_of
from engine.client.client import EngineClient, RunningEngine
from engine.client.process import EngineProcess
from engine.config.plan import RunPlan
from engine.config.resolve import resolve_plan
from engine.events import RequestFinished
from tests.bench.app_terminal import AppTerminal
from tests.bench.speed import ready

PROMPTS = (
    "Write a Python function that checks if a number is prime.",
    "Write a short story about a dragon and a knight.",
    "List five healthy breakfast ideas.",
)
SETTLE_SECONDS = 1.0  # after the app has started


async def finished(client: EngineClient) -> dict[str, Any]:
    """The result of the answer that is coming."""
    async for event in client.events():
        if isinstance(event, RequestFinished):
            assert event.finish_reason != "error", event.result
            return event.result
    raise AssertionError("no end")


async def asked_here(client: EngineClient, plan: RunPlan, prompt: str, session: str) -> dict[str, Any]:
    request = request_of(plan, [{"role": "user", "content": prompt}], session)
    await client.send(request.to_dict())
    return await finished(client)


async def asked_in_the_app(
    client: EngineClient, arguments: list[str], home: Path, prompt: str, size: tuple[int, int]
) -> tuple[dict[str, Any], float]:
    """The result, and the share of a core that the app took while it came."""
    async with AppTerminal(arguments, home, size) as app:
        await app.seen("is ready")
        await asyncio.sleep(SETTLE_SECONDS)
        begun, used = asyncio.get_running_loop().time(), app.cpu_seconds
        app.type(f"{prompt}\r")
        result = await finished(client)
        return result, (app.cpu_seconds - used) / (asyncio.get_running_loop().time() - begun)


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
        try:
            async with EngineClient(RunningEngine(process.url, process.token)) as client:
                await ready(client)
                for number in range(-1, arguments.rounds):
                    prompt = PROMPTS[number % len(PROMPTS)]
                    alone = await asked_here(client, plan, prompt, f"here-{number}")
                    watched, share = await asked_in_the_app(client, attach, home, prompt, size)
                    same = alone["token_ids"] == watched["token_ids"]
                    slow, fast = (r["timings"]["predicted_per_second"] for r in (watched, alone))
                    print(
                        f"alone {fast:6.1f} tok/s   with the app {slow:6.1f}   {slow / fast:.3f}"
                        f"   app {share:4.0%} of a core{'' if same else '   other tokens!'}"
                        f"{'   (warming up)' if number < 0 else ''}",
                        flush=True,
                    )
                    if number >= 0:
                        ratios.append(slow / fast)
        finally:
            await process.stop()
    print(f"median {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--rtt", type=float, default=0.0)
    parser.add_argument("--narrow", dest="wide", action="store_false", help="80x24 instead of 120x40")
    asyncio.run(run(parser.parse_args()))
