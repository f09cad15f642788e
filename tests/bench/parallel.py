"""Several answers at once over one set of stages: tokens a second together and each, for 1, 2 and 4 requests.

`python -m tests.bench.parallel` starts two local stages with room for four conversations, one thread each,
and asks 1, 2 and 4 questions at the same time, by turns (1 2 4 1 2 4 ..). It prints medians and asserts
nothing: machines are noisy. Two stages compute for two answers at the same time, one each; with one answer
they wait for one another.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.events import RequestFinished
from engine.protocol.messages import LinkEmulation
from tests.bench.asking import ready

QUESTIONS = (
    "Write a Python function that checks if a number is prime.",
    "Explain in simple words how a lighthouse works.",
    "Tell me a short story about a dog and a river.",
    "List ten things to take on a journey by train.",
)
AT_ONCE = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second of all answers together, and of the slowest and the fastest of them alone."""

    together: float
    slowest: float
    fastest: float


async def ask_at_once(client: EngineClient, count: int, name: str, tokens: int) -> Round:
    """Ask so many questions at the same time, and wait for all answers."""
    waiting = {f"{name}-{number}" for number in range(count)}
    begun = time.perf_counter()
    for request, question in zip(sorted(waiting), QUESTIONS, strict=False):
        message = {"role": "user", "content": question}
        ask = GenerateRequest(request=request, messages=(message,), session=request, max_tokens=tokens)
        await client.send(ask.to_dict())
    speeds, committed = [], 0
    async for event in client.events():
        if isinstance(event, RequestFinished) and event.request in waiting:
            waiting.remove(event.request)
            timings = event.result["timings"]
            speeds.append(timings["predicted_per_second"])
            committed += timings["predicted_n"]
            if not waiting:
                break
    return Round(committed / (time.perf_counter() - begun), min(speeds), max(speeds))


async def run(rounds: int, tokens: int, rtt_ms: float, strategy: str) -> None:
    plan = RunPlan(
        topology=TopologyPlan(stages=2, emulation=LinkEmulation(rtt_ms=rtt_ms)),
        compute=ComputePlan(threads=1, context=1024, sequences=max(AT_ONCE)),
        speculation=SpeculationPlan(strategy=strategy),
    )
    results: dict[int, list[Round]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as logs:
        async with EngineClient(LocalEngine(plan, Path(logs) / "engine.log")) as client:
            await ready(client)
            for number in range(-1, rounds):
                for count in AT_ONCE:
                    result = await ask_at_once(client, count, f"{number}-{count}", tokens)
                    if number >= 0:  # the first round warms caches up
                        results[count].append(result)
    print(f"two stages, one thread each, RTT {rtt_ms:g} ms, {strategy}, {tokens} tokens, {rounds} rounds")
    print(f"{'at once':>8}{'tok/s together':>16}{'min':>8}{'max':>8}{'gain':>7}{'slowest':>9}{'fastest':>9}")
    alone = statistics.median(item.together for item in results[1])
    for count, items in results.items():
        together = [item.together for item in items]
        middle = statistics.median(together)
        slowest = statistics.median(item.slowest for item in items)
        fastest = statistics.median(item.fastest for item in items)
        spread = f"{min(together):8.1f}{max(together):8.1f}{middle / alone:7.2f}"
        print(f"{count:8}{middle:16.1f}{spread}{slowest:9.1f}{fastest:9.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--strategy", default="disabled")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.rounds, arguments.tokens, arguments.rtt_ms, arguments.strategy))
