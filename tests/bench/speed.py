"""Plain decoding and prefill: llama.cpp's own loop, one stage, two stages, two stages over a slow link.

`python -m tests.bench.speed` runs all arms in turn, A B C D A B C D .., one thread per process, and prints
medians and the ratios that `docs/performance.md` quotes. It asserts nothing: machines are noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.compute.whole_loop import PlainLoop
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.coordinator.prompt import PromptBuilder
from engine.events import EngineState, RequestFinished, WindowDone
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.protocol.messages import LinkEmulation

QUESTION = "Write a Python function that checks if a number is prime."
CONTEXT = 2048


@dataclass
class Arm:
    """Figures of one arm, one entry per round, in milliseconds."""

    token_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)  # of all stages, per token
    prefill_ms: list[float] = field(default_factory=list)


def plan(stages: int, rtt_ms: float) -> RunPlan:
    """One thread per stage, plain decoding."""
    return RunPlan(
        topology=TopologyPlan(stages=stages, emulation=LinkEmulation(rtt_ms=rtt_ms)),
        compute=ComputePlan(threads=1, context=CONTEXT),
        speculation=SpeculationPlan(strategy="disabled"),
    )


async def ready(client: EngineClient) -> None:
    """Wait until an engine has loaded."""
    async for event in client.events():
        if isinstance(event, EngineState) and event.state in ("ready", "failed"):
            assert event.state == "ready", event.detail
            return


async def answer(client: EngineClient, request: GenerateRequest) -> tuple[RequestFinished, list[float]]:
    """The end of an answer, and for each window the milliseconds that all stages computed."""
    computed: list[float] = []
    async for event in client.generate(request):
        if isinstance(event, WindowDone):
            computed.append(sum(stage[2] for stage in event.stages) / 1000)
        if isinstance(event, RequestFinished):
            return event, computed
    raise AssertionError("no end")


async def decode_round(client: EngineClient, arm: Arm, number: int, tokens: int) -> None:
    request = GenerateRequest(
        request=f"d{number}",
        messages=({"role": "user", "content": QUESTION},),
        session=f"d{number}",
        max_tokens=tokens,
    )
    finished, computed = await answer(client, request)
    timings = finished.result["timings"]
    arm.token_ms.append(timings["predicted_ms"] / (timings["predicted_n"] - 1))
    arm.compute_ms.append(statistics.mean(computed[1:]))


async def prefill_round(client: EngineClient, arm: Arm, number: int, text: str) -> None:
    request = GenerateRequest(request=f"p{number}", prompt=f"{number} {text}", max_tokens=1)
    finished, _ = await answer(client, request)
    arm.prefill_ms.append(finished.result["timings"]["ttft_ms"])


def report(arms: dict[str, Arm]) -> None:
    """Medians with their spread, then ratios of medians."""
    print(f"{'arm':<22}{'token ms':>10}{'min':>8}{'max':>8}{'compute':>9}{'over':>7}{'prefill ms':>12}")
    for name, arm in arms.items():
        token = statistics.median(arm.token_ms)
        compute = statistics.median(arm.compute_ms) if arm.compute_ms else token
        prefill = statistics.median(arm.prefill_ms) if arm.prefill_ms else 0.0
        spread = f"{min(arm.token_ms):8.2f}{max(arm.token_ms):8.2f}"
        print(f"{name:<22}{token:10.2f}{spread}{compute:9.2f}{token - compute:7.2f}{prefill:12.0f}")
    plain = arms["llama.cpp"]
    for name, arm in arms.items():
        ratios = [ours / theirs for ours, theirs in zip(arm.token_ms, plain.token_ms, strict=True)]
        print(f"{name}: time per token {statistics.median(ratios):.3f} of llama.cpp's")
        if plain.prefill_ms:
            gains = [theirs / ours for ours, theirs in zip(arm.prefill_ms, plain.prefill_ms, strict=True)]
            print(f"{name}: prefill {statistics.median(gains):.2f} x llama.cpp's")


async def run(rounds: int, tokens: int, prefills: int) -> None:
    builder = PromptBuilder(ModelFile.open(demo_model()))
    prompt = builder.tokens(GenerateRequest(request="r", messages=({"role": "user", "content": QUESTION},)))
    words = "The keeper climbed the spiral stairs every evening and trimmed the wick of the great lamp. " * 70
    long_tokens = builder.tokenizer.encode(words, special=False)[:1020]
    text = b"".join(builder.piece(token) for token in long_tokens).decode()
    arms = {name: Arm() for name in ("llama.cpp", "one stage", "two stages", "two stages, 20 ms")}
    plans = {"one stage": plan(1, 0), "two stages": plan(2, 0), "two stages, 20 ms": plan(2, 20)}
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loop = stack.enter_context(PlainLoop(demo_model(), context=CONTEXT))
        clients = {}
        for name, wanted in plans.items():
            client = EngineClient(LocalEngine(wanted, logs / "engine.log"))
            clients[name] = await stack.enter_async_context(client)
            await ready(client)
        for number in range(-1, rounds):
            whole = await asyncio.to_thread(loop.generate, prompt, tokens)
            arms["llama.cpp"].token_ms.append(whole.predicted_ms / (len(whole.tokens) - 1))
            for name, client in clients.items():
                await decode_round(client, arms[name], number, tokens)
        for number in range(-1, prefills):
            tokenized = builder.tokenizer.encode(f"{number} {text}", special=True)
            whole = await asyncio.to_thread(loop.generate, tokenized, 1)
            arms["llama.cpp"].prefill_ms.append(whole.prompt_ms)
            for name, client in clients.items():
                await prefill_round(client, arms[name], number, text)
    # The first round warms caches up.
    report({name: replace_first(arm) for name, arm in arms.items()})


def replace_first(arm: Arm) -> Arm:
    return replace(
        arm, token_ms=arm.token_ms[1:], compute_ms=arm.compute_ms[1:], prefill_ms=arm.prefill_ms[1:]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prefills", type=int, default=3, help="rounds of a prompt of 1,024 tokens; 0: none")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.rounds, arguments.tokens, arguments.prefills))
