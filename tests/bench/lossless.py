"""Does every strategy give plain decoding's tokens? On the real model, over stages, with `--exact`.

`python -m tests.bench.lossless --stages 2` compares the token ids of every strategy with plain decoding over
the same stages and with the plain llama.cpp loop: ten prompts, two of them long enough to run past 700 cached
tokens. It prints a line per strategy, and where two answers part.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.compute.whole_loop import PlainLoop
from engine.config.plan import STRATEGIES, ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.coordinator.prompt import PromptBuilder
from engine.events import RequestFinished
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.protocol.messages import LinkEmulation, SamplingSettings
from tests.bench.speed import ready

CODE = """def invoice(items, rate):
    total = 0
    for item in items:
        total += item.price * item.count
    tax = total * rate
    total = total + tax
    return total
"""
STORY = "The keeper climbed the spiral stairs every evening and trimmed the wick of the great lamp. "
PROMPTS = (
    "Write a Python function that checks if a number is prime.",
    "Explain why the sky is blue.",
    "Write a short story about a dragon and a knight.",
    "List five healthy breakfast ideas.",
    "Solve: if 3x + 5 = 20, what is x? Explain step by step.",
    "Summarize the plot of Romeo and Juliet.",
    f"Rename total to amount in this function and show it again:\n{CODE}",
    f"Repeat this text word for word: {STORY * 3}",
    f"Summarize this text: {STORY * 40}",
    f"Repeat this text word for word: {STORY * 38}",
)


def request(number: int, tokens: int, strategy: str, sampling: SamplingSettings) -> GenerateRequest:
    return GenerateRequest(
        request=f"{strategy}-{number}",
        messages=({"role": "user", "content": PROMPTS[number]},),
        max_tokens=tokens,
        sampling=sampling,
        strategy=strategy,
    )


async def answers(
    client: EngineClient, strategy: str, tokens: int, sampling: SamplingSettings
) -> list[dict[str, object]]:
    results = []
    for number in range(len(PROMPTS)):
        async for event in client.generate(request(number, tokens, strategy, sampling)):
            if isinstance(event, RequestFinished):
                assert event.finish_reason != "error", event.result
                results.append(event.result)
    return results


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position at which two answers part; None if they are equal."""
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def plan(stages: int, rtt_ms: float, *, exact: bool, threads: int) -> RunPlan:
    return RunPlan(
        topology=TopologyPlan(stages=stages, emulation=LinkEmulation(rtt_ms=rtt_ms)),
        compute=ComputePlan(threads=threads, exact=exact, context=2048),
        speculation=SpeculationPlan(draft_model=str(demo_model())),
    )


def references(tokens: int) -> list[list[int]]:
    """The plain llama.cpp loop on the whole model."""
    builder = PromptBuilder(ModelFile.open(demo_model()))
    found = []
    with PlainLoop(demo_model(), context=2048) as loop:
        for number in range(len(PROMPTS)):
            prompt = builder.tokens(request(number, tokens, "disabled", SamplingSettings()))
            run = loop.generate(prompt, tokens, builder.is_end)
            found.append([token for token in run.tokens if not builder.is_end(token)])
    return found


async def run(arguments: argparse.Namespace) -> int:
    wanted = plan(arguments.stages, arguments.rtt, exact=not arguments.fast, threads=arguments.threads)
    sampling = SamplingSettings(temperature=arguments.temperature, top_k=40, top_p=0.95, seed=7)
    differences = 0
    with tempfile.TemporaryDirectory() as logs:
        async with EngineClient(LocalEngine(wanted, Path(logs) / "engine.log")) as client:
            await ready(client)
            plain = await answers(client, "disabled", arguments.tokens, sampling)
            expected = [list(result["token_ids"]) for result in plain]  # type: ignore[call-overload]
            if arguments.fast and arguments.temperature == 0:
                for number, whole in enumerate(references(arguments.tokens)):
                    at = first_difference(expected[number], whole)
                    differences += at is not None
                    if at is not None:
                        print(f"plain split, prompt {number}: parts from the whole model at {at}")
            for strategy in arguments.strategies.split(","):
                begun = time.perf_counter()
                results = await answers(client, strategy, arguments.tokens, sampling)
                parted = []
                for number, result in enumerate(results):
                    at = first_difference(result["token_ids"], expected[number])  # type: ignore[arg-type]
                    if at is not None:
                        parted.append(f"prompt {number} at {at}")
                differences += len(parted)
                proposed = sum(r["speculative"]["proposed"] for r in results)  # type: ignore[index]
                accepted = sum(r["speculative"]["accepted"] for r in results)  # type: ignore[index]
                exact = all(result["exact"] for result in results)
                print(
                    f"{strategy:<14} equal {len(results) - len(parted)}/{len(results)}  exact {exact}  "
                    f"drafts {accepted}/{proposed}  {time.perf_counter() - begun:.0f} s  {' '.join(parted)}",
                    flush=True,
                )
    return 1 if differences else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rtt", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--fast", action="store_true", help="without the exact setting")
    parser.add_argument("--strategies", default=",".join(s for s in STRATEGIES if s != "disabled"))
    sys.exit(asyncio.run(run(parser.parse_args())))
