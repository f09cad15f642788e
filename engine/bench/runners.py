"""How each kind of arm answers: llama.cpp's loop in this process, or an engine in its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Protocol

from engine.bench.arms import Arm, BenchSettings, Kind
from engine.bench.measurement import Turn
from engine.bench.netns import stage_behind_delay
from engine.bench.rpc import rpc_loop
from engine.bench.threads import on_thread
from engine.bench.whole_mtp import MtpLoop, MtpRun
from engine.bench.windows import WindowLog
from engine.client.client import EngineClient, LocalEngine
from engine.client.requests import GenerateRequest
from engine.compute.whole_loop import PlainLoop, PlainRun
from engine.config.plan import RunPlan
from engine.coordinator.prompt import PromptBuilder
from engine.errors import reported_error
from engine.events import EngineState, Event, RequestFinished
from engine.model.file import ModelFile
from engine.model.paths import log_dir
from engine.planning.balance import balanced_split

WholeLoop = PlainLoop | MtpLoop


class Runner(Protocol):
    """Answers one request of an arm; returns the turn and its text."""

    async def answer(self, arm: Arm, request: GenerateRequest) -> tuple[Turn, str]:
        """Raises SkippyError if there is no answer."""


class WholeRunner:
    """llama.cpp in this process, on a thread of its own; nothing else runs here meanwhile."""

    def __init__(self, loop: WholeLoop, prompts: PromptBuilder) -> None:
        self._loop = loop
        self._prompts = prompts

    async def answer(self, arm: Arm, request: GenerateRequest) -> tuple[Turn, str]:
        prompt = self._prompts.tokens(request)
        is_end = self._prompts.is_end
        loop = self._loop

        given_up = threading.Event()

        def is_over(token: int) -> bool:
            return given_up.is_set() or is_end(token)

        def generate() -> PlainRun | MtpRun:
            return loop.generate(prompt, request.max_tokens, is_over)

        run = await on_thread(generate, stop=given_up.set)
        tokens = run.tokens[:-1] if is_end(run.tokens[-1]) else run.tokens
        text = b"".join(map(self._prompts.piece, tokens)).decode("utf-8", "replace")
        turn = Turn(
            tokens=tokens,
            decoded=len(run.tokens) - 1,
            decode_ms=run.predicted_ms,
            first_token_ms=run.prompt_ms,
            prompt_tokens=len(prompt),
            speculative=_counters(run),
        )
        return turn, text


class EngineRunner:
    """An engine, to which a front end is attached as always."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def answer(self, arm: Arm, request: GenerateRequest) -> tuple[Turn, str]:
        log = WindowLog()
        finished: RequestFinished | None = None
        async for event in self._client.generate(request):
            if isinstance(event, RequestFinished) and event.request == request.request:
                finished = event
            else:
                log.add(event)
        assert finished is not None  # or `generate` would have raised
        result = finished.result
        if error := result.get("error"):
            raise reported_error(error["message"], hint=error["hint"], code=error["code"])
        timings = result["timings"]
        ended = result["finish_reason"] == "stop"  # by an end token, which is timed but not counted
        turn = Turn(
            tokens=tuple(result["token_ids"]),
            decoded=max(0, timings["predicted_n"] - 1 + ended),
            decode_ms=timings["predicted_ms"],
            first_token_ms=timings["ttft_ms"],
            prompt_tokens=timings["prompt_n"],
            compute_ms=log.compute_ms,
            speculative=_kept(result["speculative"]),
            windows=tuple(log.windows),
        )
        return turn, result["text"]


async def open_runners(
    settings: BenchSettings,
    arms: Sequence[Arm],
    model: ModelFile,
    prompts: PromptBuilder,
    stack: AsyncExitStack,
) -> dict[Arm, Runner]:
    """A runner for each arm; strategies over the same stages share an engine. All are closed by `stack`."""
    runners: dict[Arm, Runner] = {}
    engines: dict[tuple[Any, ...], EngineRunner] = {}
    for arm in arms:
        match arm.kind:
            case Kind.WHOLE:
                runners[arm] = WholeRunner(await _loaded(PlainLoop, settings, arm, model, stack), prompts)
            case Kind.WHOLE_MTP:
                runners[arm] = WholeRunner(await _loaded(MtpLoop, settings, arm, model, stack), prompts)
            case Kind.RPC:
                runners[arm] = WholeRunner(await _rpc(settings, arm, model, stack), prompts)
            case Kind.ENGINE:
                place = arm.stages, arm.rtt_ms, arm.namespaces
                if place not in engines:
                    plan = settings.engine_plan(arm)
                    if arm.namespaces:
                        plan = await _in_namespace(plan, settings, model, len(engines), stack)
                    engines[place] = await open_engine(plan, stack)
                runners[arm] = engines[place]
    return runners


async def open_engine(plan: RunPlan, stack: AsyncExitStack, command: Sequence[str] = ()) -> EngineRunner:
    """Start an engine and wait until it has loaded. Raises SkippyError."""
    target = LocalEngine(plan, log_dir() / "bench-engine.log")
    if command:
        target = LocalEngine(plan, target.log_path, command)
    client = await stack.enter_async_context(EngineClient(target))
    async for event in client.events():
        if _is_ready(event):
            break
    return EngineRunner(client)


async def _in_namespace(
    plan: RunPlan, settings: BenchSettings, model: ModelFile, number: int, stack: AsyncExitStack
) -> RunPlan:
    """The same stages, but the last one behind a delay of packets instead of an emulated one."""
    split = await _split(plan, model)
    behind = stage_behind_delay(plan, split, plan.topology.emulation, number, settings.netns)
    return replace(plan, topology=await stack.enter_async_context(behind))


async def _rpc(settings: BenchSettings, arm: Arm, model: ModelFile, stack: AsyncExitStack) -> PlainLoop:
    plan = settings.engine_plan(arm)
    return await stack.enter_async_context(
        rpc_loop(
            settings.rpc_library,
            model,
            await _split(plan, model),
            threads=arm.threads,
            context=plan.compute.context,
            emulation=plan.topology.emulation,
        )
    )


async def _split(plan: RunPlan, model: ModelFile) -> int:
    """First layer of the second of two stages."""
    balanced = plan.topology.split or await asyncio.to_thread(balanced_split, model, 2, plan.compute.threads)
    return balanced[0]


def _is_ready(event: Event) -> bool:
    if isinstance(event, EngineState) and event.state == "failed":
        raise reported_error(event.detail, code=event.code)
    return isinstance(event, EngineState) and event.state == "ready"


async def _loaded(
    loop: type[PlainLoop] | type[MtpLoop],
    settings: BenchSettings,
    arm: Arm,
    model: ModelFile,
    stack: AsyncExitStack,
) -> WholeLoop:
    compute = settings.plan.compute

    def load() -> WholeLoop:
        opened = loop(
            model.path,
            context=compute.context,
            threads=arm.threads,
            exact=compute.exact,
            gpu_layers=compute.gpu_layers,
        )
        stack.callback(opened.close)  # here, for the case that nobody waits for it any more
        return opened

    return await on_thread(load)


def _counters(run: PlainRun | MtpRun) -> dict[str, Any]:
    if isinstance(run, PlainRun):
        return {}
    return {"proposed": run.proposed, "accepted": run.accepted, "windows": run.proposed}


def _kept(counters: dict[str, Any]) -> dict[str, Any]:
    """Of the counters of the JSON result, those that a report needs."""
    names = ("windows", "proposed", "accepted", "by_source", "width", "pipeline")
    return {name: counters[name] for name in names}
