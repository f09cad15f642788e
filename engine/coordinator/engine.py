"""The engine: one model, its stages, and the answers it gives.

Starting takes the plan to a running chain of stages; after that the engine lends each request a slot and lets
a `Generation` drive it. A chain that breaks is rebuilt before the next request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.client.requests import GenerateRequest
from engine.config.plan import RunPlan
from engine.config.rules import with_speculation
from engine.coordinator.chain import Chain, ChainSettings, probe
from engine.coordinator.generation import Generation, GenerationSetting
from engine.coordinator.layout import (
    Layout,
    check_split,
    local_layout,
    remote_layout,
    stage_count,
    threads_per_stage,
)
from engine.coordinator.prompt import PromptBuilder
from engine.coordinator.slots import Slot, choose_slot, take
from engine.coordinator.supervisor import LocalStage
from engine.errors import Busy, SkippyError, StageLost
from engine.events import EngineState, Event, ModelReady, Notice, RequestFinished, StageState
from engine.model.demo import resolve_model
from engine.model.file import ModelFile
from engine.model.paths import log_dir
from engine.planning.balance import balanced_split
from engine.protocol.messages import Hello, Hop, Message, Role, StageInfo, WireType
from engine.stage.process import StageSettings, load_worker
from engine.stage.worker import StageWorker
from engine.transport.timeouts import TIMEOUTS

log = logging.getLogger("skippy.engine")

Emit = Callable[[Event], None]


class Engine:
    """Owns the model, the stages and the slots. Everything runs on one event loop; compute does not."""

    def __init__(self, plan: RunPlan, emit: Emit) -> None:
        self.plan = plan
        self.emit = emit
        self.state = EngineState(state="starting")
        self.model_ready: ModelReady | None = None
        self.stage_states: dict[int, StageState] = {}
        self._model: ModelFile | None = None
        self._prompts: PromptBuilder | None = None
        self._layout: Layout | None = None
        self._worker: StageWorker | None = None
        self._local: list[LocalStage] = []
        self._slots: list[Slot] = []
        self._running: dict[str, Generation] = {}
        self._repairing = asyncio.Lock()

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, start or reach every stage, open the first lane. Raises SkippyError."""
        loop = asyncio.get_running_loop()

        def progress(detail: str) -> Callable[[int, int], None]:
            def report(done: int, total: int) -> None:
                fraction = done / total if total else -1.0
                loop.call_soon_threadsafe(self._set_state, "loading", detail, fraction)

            return report

        self._set_state("loading", "reading the model")
        path = await asyncio.to_thread(resolve_model, self.plan.model, progress("building the default model"))
        model = self._model = await asyncio.to_thread(ModelFile.open, path)
        self._layout = layout = await self._lay_out(model)
        self._set_state("loading", "starting the stages")
        prompts = asyncio.create_task(asyncio.to_thread(PromptBuilder, model))
        try:
            await self._start_stages(layout, progress("slicing the model"))
            self._prompts = await prompts
        finally:
            prompts.cancel()
        slot = Slot(number=0)
        await self._open_chain(slot)
        assert slot.chain is not None
        sequences = min(info.sequences for info in slot.chain.stages)
        self._slots = [slot, *(Slot(number=n) for n in range(1, sequences))]
        self._announce_model(slot.chain.stages)
        self._set_state("ready")

    async def close(self) -> None:
        """End every answer, lane, stage and thread."""
        for generation in list(self._running.values()):
            generation.cancel()
        for slot in self._slots:
            if slot.chain is not None:
                await slot.chain.close()
        await asyncio.gather(*(stage.stop() for stage in self._local))
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)
        if self._prompts is not None:
            self._prompts.close()
        self._set_state("stopped")

    async def _lay_out(self, model: ModelFile) -> Layout:
        plan = self.plan
        if plan.topology.remote:
            first = plan.topology.remote[0]
            return remote_layout(plan, model, await probe(Hop(first.url, first.token)))
        count = stage_count(plan, model)
        if plan.topology.split:
            check_split(plan.topology.split, model.n_layers)
            balanced: tuple[int, ...] = ()
        else:
            threads = threads_per_stage(plan, count)
            balanced = await asyncio.to_thread(balanced_split, model, count, threads)
        return local_layout(plan, model, balanced)

    async def _start_stages(self, layout: Layout, progress: Callable[[int, int], None]) -> None:
        """Load stage 0 here and the other local stages in their processes, all at the same time."""
        compute = self.plan.compute
        model = self._model
        assert model is not None
        shared = StageSettings(
            model=str(model.path),
            first=0,
            end=-1,
            threads=layout.threads,
            exact=compute.exact,
            gpu_layers=compute.gpu_layers,
            context=self._context(model),
            sequences=compute.sequences,
            batch_rows=max(compute.prefill_rows, self._window_rows()),
        )
        first_process = 0 if layout.own is None else 1
        self._local = [
            LocalStage(index, replace(shared, first=first, end=end), log_dir())
            for index, (first, end) in enumerate(layout.local, start=first_process)
        ]
        loading: list[asyncio.Task[Any]] = [asyncio.create_task(self._start_local(stage)) for stage in self._local]
        if layout.own is not None:
            own = replace(shared, first=layout.own[0], end=layout.own[1])
            self._stage_changed(0, "starting", layout.own, "this engine")
            loading.append(asyncio.create_task(asyncio.to_thread(load_worker, own, progress)))
        try:
            results = await asyncio.gather(*loading)
        except BaseException:
            await asyncio.gather(*loading, return_exceptions=True)
            await asyncio.gather(*(stage.stop() for stage in self._local))
            raise
        if layout.own is not None:
            self._worker = results[-1]
            self._stage_changed(0, "ready", layout.own, "this engine")

    async def _start_local(self, stage: LocalStage) -> None:
        span = (stage.settings.first, stage.settings.end)
        restarting = stage.restarts >= 0
        self._stage_changed(stage.index, "restarting" if restarting else "starting", span, "this machine")
        await stage.start()

    def _context(self, model: ModelFile) -> int:
        trained = model.context_length
        return min(self.plan.compute.context, trained) if trained else self.plan.compute.context

    def _window_rows(self) -> int:
        return self.plan.speculation.window_max + 1

    # -- chains ------------------------------------------------------------------------------------

    async def _open_chain(self, slot: Slot) -> None:
        layout, model = self._layout, self._model
        assert layout is not None and model is not None
        hops = layout.remote or tuple(stage.hop for stage in self._local)
        chain = Chain(
            self._worker,
            on_message=lambda message, route: self._reply(slot, message, route),
            on_lost=lambda error: self._chain_lost(slot, error),
            on_warning=lambda code, text: self.emit(Notice(level="warning", code=code, message=text)),
        )
        identity = Hello(
            role=Role.LANE,
            chain="",
            fingerprint=model.fingerprint,
            architecture=model.architecture,
            n_embd=model.n_embd,
            n_layers=model.n_layers,
        )
        topology, compute = self.plan.topology, self.plan.compute
        await chain.open(
            ChainSettings(
                hops=hops,
                wire=topology.wire,
                emulation=topology.emulation,
                window_rows=self._window_rows(),
                prefill_rows=compute.prefill_rows,
                context=self._context(model) if self._local else 0,
                sequences=1,
            ),
            identity,
        )
        slot.chain, slot.cached, slot.chat = chain, [], ""
        for index, info in enumerate(chain.stages):
            self._stage_changed(
                index, "ready", (info.first_layer, info.end_layer), info.where or "this engine", pid=info.pid
            )

    def _reply(self, slot: Slot, message: Message, route: str) -> None:
        for generation in self._running.values():
            if generation.slot is slot:
                generation.on_message(message, route)
                return
        log.debug("%s after the end of its answer", type(message).__name__)

    def _chain_lost(self, slot: Slot, error: StageLost) -> None:
        for index, state in self.stage_states.items():
            if index > 0 or self._worker is None:
                self._stage_changed(index, "unreachable", state.layers, state.where, reason=str(error))
        self.emit(Notice(level="warning", code=error.code, message=error.message))
        for generation in list(self._running.values()):
            if generation.slot is slot:
                generation.on_lost(error)

    async def _ensure_chain(self, slot: Slot) -> Chain:
        """The slot's chain, rebuilt if it broke: dead local stages are started again first."""
        if slot.chain is not None and slot.chain.lost is None:
            return slot.chain
        async with self._repairing:
            if slot.chain is not None:
                await slot.chain.close()
                slot.chain = None
                self._set_state("recovering", "starting lost stages again")
            await asyncio.gather(*(self._start_local(stage) for stage in self._local if not stage.running))
            await self._open_chain(slot)
            self._set_state("ready")
        assert slot.chain is not None
        return slot.chain

    # -- answers -----------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> RequestFinished:
        """Answer one request; every step of it is an event. Errors end it with finish reason `error`."""
        try:
            finished = await self._answer(request)
        except SkippyError as error:
            self.emit(Notice(level="error", code=error.code, message=error.message, hint=error.hint))
            finished = RequestFinished(
                request=request.request,
                finish_reason="error",
                result={"error": {"code": error.code, "message": error.message, "hint": error.hint}},
            )
        self.emit(finished)
        return finished

    async def _answer(self, request: GenerateRequest) -> RequestFinished:
        if self._prompts is None:
            raise SkippyError("the engine is not ready", hint="wait for it to load", code="not-ready")
        prompt = self._prompts.tokens(request)
        slot = await self._checkout(request.session)
        generation: Generation | None = None
        try:
            chain = await self._ensure_chain(slot)
            generation = Generation(
                GenerationSetting(
                    request=request,
                    prompt=prompt,
                    slot=slot,
                    chain=chain,
                    prompts=self._prompts,
                    speculation=replace(self.plan.speculation, strategy=request.strategy or self.plan.speculation.strategy),
                    context=min(info.context for info in chain.stages),
                    window_rows=min(info.window_rows for info in chain.stages),
                    prefill_rows=min(self.plan.compute.prefill_rows, *(info.prefill_rows for info in chain.stages)),
                    model=self.model_json(),
                    exact=self.exact(chain.stages),
                    restarts={stage.index: stage.restarts for stage in self._local},
                ),
                self.emit,
            )
            self._running[request.request] = generation
            return await generation.run()
        finally:
            self._running.pop(request.request, None)
            slot.busy = False
            slot.last_used = time.monotonic()

    async def _checkout(self, chat: str) -> Slot:
        """A slot, waiting for one at most as long as admission allows. Raises Busy."""
        deadline = time.monotonic() + TIMEOUTS.admission
        while (slot := choose_slot(self._slots, chat)) is None:
            if time.monotonic() > deadline:
                raise Busy(f"all {len(self._slots)} sequences are answering", hint="try again in a moment")
            await asyncio.wait(
                [generation.finished for generation in self._running.values()],
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        take(slot, chat)
        return slot

    def cancel(self, request: str) -> None:
        """Stop an answer; what it has so far is kept. Unknown ids are ignored: it may just have ended."""
        generation = self._running.get(request)
        if generation is not None:
            generation.cancel()

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Change settings of speculation from the next window on. Raises UsageError naming the setting."""
        speculation = with_speculation(self.plan.speculation, values)
        self.plan = replace(self.plan, speculation=speculation)
        for generation in self._running.values():
            generation.update(speculation)

    # -- what front ends see -----------------------------------------------------------------------

    def exact(self, stages: tuple[StageInfo, ...]) -> bool:
        """Whether rows of a window equal single rows on every stage and the wire loses nothing."""
        return self.plan.topology.wire is WireType.F32 and all(info.exact for info in stages)

    def model_json(self) -> dict[str, Any]:
        model = self._model
        assert model is not None
        return {
            "name": model.name,
            "architecture": model.architecture,
            "layers": model.n_layers,
            "fingerprint": model.fingerprint,
        }

    def snapshot(self) -> list[Event]:
        """The events that bring a new front end up to date."""
        events: list[Event] = [self.state]
        if self.model_ready is not None:
            events.append(self.model_ready)
        return events + list(self.stage_states.values())

    def fail(self, error: SkippyError) -> None:
        self._set_state("failed", str(error))

    def _announce_model(self, stages: tuple[StageInfo, ...]) -> None:
        model = self._model
        assert model is not None
        native_mtp = stages[-1].native_mtp
        notes: list[str] = []
        if not all(info.can_rollback for info in stages):
            notes.append(f"speculation is off: the state of {model.architecture} cannot be rolled back")
        self.model_ready = ModelReady(
            at=time.monotonic(),
            name=model.name,
            path=str(model.path),
            architecture=model.architecture,
            layers=model.n_layers,
            fingerprint=model.fingerprint,
            native_mtp=native_mtp,
            context=min(info.context for info in stages),
            exact=self.exact(stages),
            wire=self.plan.topology.wire.value,
            strategy=self.plan.speculation.strategy,
            notes=tuple(notes),
        )
        self.emit(self.model_ready)

    def _set_state(self, state: str, detail: str = "", fraction: float = -1.0) -> None:
        self.state = EngineState(at=time.monotonic(), state=state, detail=detail, fraction=fraction)
        self.emit(self.state)

    def _stage_changed(
        self, index: int, state: str, layers: tuple[int, int], where: str, *, reason: str = "", pid: int = 0
    ) -> None:
        restarts = next((stage.restarts for stage in self._local if stage.index == index), 0)
        event = StageState(
            at=time.monotonic(),
            index=index,
            state=state,
            layers=layers,
            where=where,
            reason=reason,
            pid=pid,
            restarts=max(0, restarts),
        )
        self.stage_states[index] = event
        self.emit(event)
