"""Each strategy against plain decoding over the same stages, at several round trips and kinds of text.

`python -m tests.bench.strategies --rtt 20` interleaves the strategies prompt by prompt and prints medians of
the ratio of tokens per second, with acceptance, width and occupancy. One thread per stage. It asserts
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.events import RequestFinished
from engine.protocol.messages import LinkEmulation
from tests.bench.lossless import CODE, STORY
from tests.bench.speed import ready

WORKLOADS: dict[str, tuple[str, ...]] = {
    "chat": (
        "Explain why the sky is blue.",
        "What are the benefits of regular exercise?",
        "Write a short story about a dragon and a knight.",
    ),
    "coding": (
        "Write a Python function that checks if a number is prime.",
        "Write a SQL query to find the top 5 customers by revenue.",
        "Write a Python class for a stack with push and pop.",
    ),
    "copy": (f"Repeat this text word for word: {STORY * 4}",),
    "rename": (f"Rename total to amount in this function and show it again:\n{CODE}",),
}


async def answer(client: EngineClient, name: str, prompt: str, strategy: str, tokens: int) -> dict[str, Any]:
    request = GenerateRequest(
        request=name,
        messages=({"role": "user", "content": prompt},),
        max_tokens=tokens,
        strategy=strategy,
    )
    async for event in client.generate(request):
        if isinstance(event, RequestFinished):
            assert event.finish_reason != "error", event.result
            return event.result
    raise AssertionError("no end")


def speed(result: dict[str, Any]) -> float:
    """Tokens per second after the first token."""
    timings = result["timings"]
    return (timings["predicted_n"] - 1) * 1000 / max(timings["predicted_ms"], 1e-9)


def describe(results: list[dict[str, Any]]) -> str:
    spec = [result["speculative"] for result in results]
    proposed = sum(item["proposed"] for item in spec)
    accepted = sum(item["accepted"] for item in spec)
    windows = sum(item["windows"] for item in spec)
    tokens = sum(result["timings"]["predicted_n"] for result in results)
    occupancy = statistics.mean(item["pipeline"]["occupancy"] for item in spec)
    deepest = max(item["pipeline"]["in_flight_max"] for item in spec)
    rate = accepted / proposed if proposed else 0.0
    per_window = f"accepted {rate:.2f}  tokens/window {tokens / windows:.2f}"
    return f"{per_window}  depth {deepest}  occupancy {occupancy:.2f}"


async def run(arguments: argparse.Namespace) -> None:
    strategies = ["disabled", *arguments.strategies.split(",")]
    plan = RunPlan(
        topology=TopologyPlan(stages=2, emulation=LinkEmulation(rtt_ms=arguments.rtt)),
        compute=ComputePlan(threads=1, context=2048),
        speculation=SpeculationPlan(draft_max=arguments.draft_max),
    )
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as logs:
        async with EngineClient(LocalEngine(plan, Path(logs) / "engine.log")) as client:
            await ready(client)
            await answer(client, "warm", "Say hello.", "auto", 40)
            for number in range(arguments.rounds):
                for workload in arguments.workloads.split(","):
                    for index, prompt in enumerate(WORKLOADS[workload]):
                        for strategy in strategies:
                            name = f"{number}-{workload}-{index}-{strategy}"
                            result = await answer(client, name, prompt, strategy, arguments.tokens)
                            found[workload, strategy].append(result)
    for workload in arguments.workloads.split(","):
        plain = found[workload, "disabled"]
        print(f"{workload}, {arguments.rtt:g} ms: plain {statistics.median(map(speed, plain)):.1f} tok/s")
        for strategy in strategies[1:]:
            results = found[workload, strategy]
            ratios = [speed(ours) / speed(theirs) for ours, theirs in zip(results, plain, strict=True)]
            same = sum(a["token_ids"] == b["token_ids"] for a, b in zip(results, plain, strict=True))
            print(
                f"  {strategy:<13} x {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})  "
                f"{describe(results)}  same text {same}/{len(results)}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtt", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draft-max", type=int, default=4)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--strategies", default="auto,mtp,ngram-suffix,mtp-suffix")
    asyncio.run(run(parser.parse_args()))
