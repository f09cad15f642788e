"""The planner's predictions against what is then measured, on the default model in local stages.

`python -m tests.bench.predictions` runs rounds of: time this machine as `skippy-engine plan` does, then
answer in two and three stages at each round trip. It prints medians over the rounds: predicted, measured,
their ratio. With `--strategy mtp` or `auto` the prediction is given the windows of the run itself: how many
rows and drafts each of them had, and after which reply or draft it was sent. It asserts nothing: machines are
noisy, and those that change their speed for seconds need the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.bench.model import Costs, replay
from engine.bench.windows import Window, WindowLog, unpacked
from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.config.plan import ComputePlan, RunPlan, SpeculationPlan, TopologyPlan
from engine.events import Event, RequestFinished
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.planning.costs import StageCosts
from engine.planning.describe import describe_model
from engine.planning.measure import measure_costs
from engine.planning.prediction import PlacedStage, draft_ms, network_ms
from engine.planning.profiles import Cluster, ComputeCosts, Demand, ModelProfile, NodeProfile
from engine.planning.synthetic import measuring_header
from engine.protocol.messages import LinkEmulation
from tests.bench.asking import ready

PROMPT = "Write a Python function that checks if a number is prime."
CONTEXT = 2048


@dataclass(frozen=True)
class Arm:
    stages: int
    rtt_ms: float

    def plan(self, strategy: str) -> RunPlan:
        return RunPlan(
            topology=TopologyPlan(stages=self.stages, emulation=LinkEmulation(rtt_ms=self.rtt_ms)),
            compute=ComputePlan(threads=1, context=CONTEXT),
            speculation=SpeculationPlan(strategy=strategy),
        )


async def answer(
    client: EngineClient, name: str, strategy: str, tokens: int
) -> tuple[dict[str, Any], list[Event]]:
    """The JSON result of a chat with one question, and all that was told on the way."""
    messages = ({"role": "user", "content": PROMPT},)
    request = GenerateRequest(request=name, messages=messages, max_tokens=tokens, strategy=strategy)
    events = [event async for event in client.generate(request)]
    finished = next(event for event in events if isinstance(event, RequestFinished))
    assert finished.finish_reason != "error", finished.result
    return finished.result, events


def predicted_ms(
    model: ModelProfile, compute: ComputeCosts, arm: Arm, result: dict[str, Any], events: list[Event]
) -> float:
    """Time per token of an answer after the first one."""
    spans = [stage["layers"] for stage in result["stages"]]
    nodes = [NodeProfile(f"stage {i}", 1 << 40, compute, own=i == 0) for i in range(len(spans))]
    cluster = Cluster(tuple(nodes), rtt_ms=arm.rtt_ms)
    placement = tuple(PlacedStage(node, *span) for node, span in zip(nodes, spans, strict=True))
    timings = result["timings"]
    demand = Demand(context=CONTEXT, prompt=timings["prompt_n"], answer=timings["predicted_n"])
    costs = StageCosts(model, demand)
    windows = windows_of(events, nodes[-1])
    stage_ms = {
        (index, rows): costs.compute_ms(stage.node, stage.first, stage.end, rows)
        for index, stage in enumerate(placement)
        for rows in {window.rows for window in windows}
    }
    machines = Costs(stage_ms, {window.drafted: window.draft_ms for window in windows})
    rest_ms = network_ms(cluster, model, placement, 1)
    took = replay(windows, machines, stages=len(placement), rest_ms=rest_ms)
    return took / (timings["predicted_n"] - 1)


def windows_of(events: list[Event], head: NodeProfile) -> list[Window]:
    """The windows of an answer, with what their drafts should take where the head is."""
    log = WindowLog()
    for event in events:
        log.add(event)
    return [replace(one, draft_ms=draft_ms(head, one.drafted)) for one in unpacked(log.windows)]


def measured_ms(result: dict[str, Any]) -> float:
    timings = result["timings"]
    return float(timings["predicted_ms"] / (timings["predicted_n"] - 1))


async def run(arguments: argparse.Namespace) -> None:
    model = ModelFile.open(demo_model())
    header, profile = measuring_header(model), describe_model(model)
    arms = [Arm(stages, rtt) for stages in arguments.stages for rtt in arguments.rtt]
    found: dict[Arm, list[tuple[float, float]]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients: dict[Arm, EngineClient] = {}
        for arm in arms:
            client = EngineClient(LocalEngine(arm.plan(arguments.strategy), folder / "engine.log"))
            clients[arm] = await stack.enter_async_context(client)
            await ready(client)
        for number in range(-1, arguments.rounds):
            cache = folder / str(number)
            compute = await asyncio.to_thread(measure_costs, header, 1, cache_dir=cache)
            for arm, client in clients.items():
                tokens = arguments.tokens if number >= 0 else 4
                result, events = await answer(client, f"{number}", arguments.strategy, tokens)
                if number >= 0:  # the first round warms up
                    predicted = predicted_ms(profile, compute, arm, result, events)
                    found[arm].append((predicted, measured_ms(result)))
    report(found)


def report(found: dict[Arm, list[tuple[float, float]]]) -> None:
    print(f"{'stages':>6} {'RTT ms':>7} {'predicted':>10} {'measured':>10} {'ratio':>7}  rounds")
    for arm, pairs in found.items():
        predicted, measured = (statistics.median(column) for column in zip(*pairs, strict=True))
        rounds = " ".join(f"{a:.1f}/{b:.1f}" for a, b in pairs)
        ratio = predicted / measured
        print(
            f"{arm.stages:>6} {arm.rtt_ms:>7g} {predicted:>10.2f} {measured:>10.2f} {ratio:>7.3f}  {rounds}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--strategy", default="disabled")
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--rtt", type=float, nargs="+", default=[0.0, 20.0, 100.0])
    asyncio.run(run(parser.parse_args()))
