"""The engine: one model, its stages, and the answers it gives.

Starting takes the plan to a running chain of stages; after that the engine lends each request a slot and lets
a `Generation` drive it. A chain that broke is rebuilt before the next request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.client.requests import GenerateRequest
from engine.compute.gpu import NO_GPU_HINT, gpu_warning
from engine.config.plan import RunPlan
from engine.config.rules import with_speculation
from engine.coordinator.alone import faster_alone
from engine.coordinator.chain import RETURN_LINK, Chain
from engine.coordinator.drafting import Drafting
from engine.coordinator.generation import Generation
from engine.coordinator.generation_setting import GenerationSetting
from engine.coordinator.layout import check_fingerprint
from engine.coordinator.prompt import PromptBuilder
from engine.coordinator.slots import Slot, SlotPool
from engine.coordinator.stages import Stages
from engine.errors import SkippyError, StageLost, UsageError
from engine.events import EngineState, Event, ModelReady, Notice, RequestFinished, StageState
from engine.model.file import ModelFile
from engine.model.packages.source import open_model
from engine.protocol.messages import LinkEmulation, Message, StageInfo, WireType
from engine.stage.worker import StageWorker
from engine.transport.timeouts import TIMEOUTS

log = logging.getLogger("skippy.engine")

Emit = Callable[[Event], None]


class Engine:
    """Owns the model, the stages and the slots. Everything runs on one event loop; compute does not."""

    def __init__(self, plan: RunPlan, emit: Emit) -> None:
        self.plan = plan
        self._forward_event = emit
        self._incidents: list[dict[str, Any]] = []  # what the results of running answers will tell
        self.state = EngineState(state="starting")
        self.model_ready: ModelReady | None = None
        self._model: ModelFile | None = None
        self._prompts: PromptBuilder | None = None
        self._drafting: Drafting | None = None
        self._stages: Stages | None = None
        self._slots = SlotPool(())
        self._running: dict[str, Generation] = {}
        self._repairing = asyncio.Lock()
        self._told_split = False  # that one machine alone would be faster

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, start or reach every stage, open the first lane. Raises SkippyError."""
        self._set_state("loading", "reading the model")
        building = self._progress("building the default model")
        model = self._model = await asyncio.to_thread(open_model, self.plan.model, building)
        check_fingerprint(self.plan, model)
        self._stages = Stages(self.plan, model, self.emit, self._tell)
        self._set_state("loading", "starting the stages")
        prompts = asyncio.create_task(asyncio.to_thread(PromptBuilder, model))
        try:
            await self._stages.start(self._progress("slicing the model"))
        finally:
            self._prompts = await prompts
        await self._prepare_drafting(model)
        slot = Slot(number=0)
        chain = slot.chain = await self._stages.open(lambda worker: self._make_chain(slot, worker))
        sequences = min(info.sequences for info in chain.stages)
        self._slots = SlotPool([slot, *(Slot(number=number) for number in range(1, sequences))])
        self._announce_model(model, chain.stages)
        if warning := gpu_warning(self.plan.compute.gpu_layers):
            self.emit(Notice(level="warning", code="no-gpu", message=warning, hint=NO_GPU_HINT))
        self._set_state("ready")

    async def _prepare_drafting(self, model: ModelFile) -> None:
        assert self._stages is not None
        loop = asyncio.get_running_loop()
        drafting = await asyncio.to_thread(Drafting, self.plan.speculation, model, self._stages.context)
        self._drafting = drafting
        if drafting.runner is not None:

            def tell() -> None:
                loop.call_soon_threadsafe(self._drafts_ready)

            drafting.runner.on_ready = tell

    def _drafts_ready(self) -> None:
        for generation in list(self._running.values()):
            generation.on_drafts_ready()

    async def close(self) -> None:
        """End every answer, lane, stage and thread."""
        for generation in list(self._running.values()):
            generation.cancel()
        for slot in self._slots.slots:
            if slot.repair is not None:
                slot.repair.cancel()
                await asyncio.wait({slot.repair})
            if slot.chain is not None:
                await slot.chain.close()
        if self._stages is not None:
            await self._stages.close()
        if self._drafting is not None:
            await asyncio.to_thread(self._drafting.close)
        if self._prompts is not None:
            self._prompts.close()
        self._set_state("stopped")

    def emit(self, event: Event) -> None:
        """Tell the front ends; warnings and restarts are also told in the results of running answers."""
        if isinstance(event, Notice) or (isinstance(event, StageState) and event.state == "restarting"):
            self._incidents.append(event.to_dict())
        self._forward_event(event)

    def fail(self, error: SkippyError) -> None:
        """Starting failed; front ends are told why."""
        self._set_state("failed", str(error), code=error.code)
        self.emit(Notice(level="error", code=error.code, message=error.message, hint=error.hint))

    def _progress(self, detail: str) -> Callable[[int, int], None]:
        """A progress callback for other threads."""
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            fraction = done / total if total else -1.0
            loop.call_soon_threadsafe(self._set_state, "loading", detail, fraction)

        return report

    def _tell(self, detail: str, fraction: float) -> None:
        """Show what is being done, in whatever state the engine is."""
        self._set_state(self.state.state, detail, fraction)

    # -- chains ------------------------------------------------------------------------------------

    def _make_chain(self, slot: Slot, worker: StageWorker | None) -> Chain:
        return Chain(
            worker,
            on_message=lambda message, route: self._reply(slot, message, route),
            on_lost=lambda error: self._chain_lost(slot, error),
            on_warning=lambda code, text: self.emit(Notice(level="warning", code=code, message=text)),
        )

    async def _ensure_chain(self, slot: Slot, patience: float) -> Chain:
        """The slot's chain, rebuilt if it broke. Raises SkippyError if that fails; the next request tries
        again. Stages elsewhere may take `patience` seconds to come back."""
        if slot.chain is not None and slot.chain.lost is None:
            return slot.chain
        if slot.repair is None or slot.repair.done():
            slot.repair = asyncio.create_task(self._repair_in_turn(slot, patience))
        # Whoever waits may give up; a stage that is being loaded is loaded all the same.
        return await asyncio.shield(slot.repair)

    async def _repair_in_turn(self, slot: Slot, patience: float) -> Chain:
        async with self._repairing:
            return await self._repair(slot, patience)

    async def _repair(self, slot: Slot, patience: float) -> Chain:
        assert self._stages is not None
        lost, slot.chain, slot.cached = slot.chain, None, []
        begun, fault = time.monotonic(), None if lost is None else lost.lost
        if lost is not None:
            self._set_state("recovering", str(fault))
            await lost.close()
        direct = fault is None or fault.code != RETURN_LINK
        try:
            chain = await self._stages.reopen(
                lambda worker: self._make_chain(slot, worker), patience=patience, direct=direct
            )
        except SkippyError as error:
            self._set_state("recovering", f"{error.message}; the next prompt tries again", code=error.code)
            raise
        slot.chain = chain
        if lost is not None:
            text = f"all stages are back after {time.monotonic() - begun:.1f} s"
            self.emit(Notice(level="info", code="recovered", message=text))
        self._set_state("ready")
        return chain

    def _reply(self, slot: Slot, message: Message, route: str) -> None:
        generation = self._generation_of(slot)
        if generation is None:
            log.debug("%s after the end of its answer", type(message).__name__)
        else:
            generation.on_message(message, route)

    def _chain_lost(self, slot: Slot, error: StageLost) -> None:
        assert self._stages is not None
        self._stages.lost(error)
        self.emit(Notice(level="warning", code=error.code, message=error.message))
        generation = self._generation_of(slot)
        if generation is not None:
            generation.on_lost(error)

    def _generation_of(self, slot: Slot) -> Generation | None:
        return next((item for item in self._running.values() if item.slot is slot), None)

    # -- answers -----------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> RequestFinished:
        """Answer one request; every step of it is an event. Errors end it with finish reason `error`."""
        if not self._running:
            self._incidents.clear()
        told_before = len(self._incidents)
        try:
            finished = await self._answer(request)
        except SkippyError as error:
            finished = refusal(request.request, error)
        except Exception as error:
            log.exception("request %s failed", request.request)
            fault = SkippyError(f"{type(error).__name__}: {error}", code="internal")
            finished = refusal(request.request, fault)
        if cause := finished.result.get("error"):
            self.emit(Notice(level="error", **cause))
        finished.result["events"] = self._incidents[told_before:]
        finished.result["events_dropped"] = 0  # a front end that lost some says so
        self.emit(finished)
        return finished

    async def _answer(self, request: GenerateRequest) -> RequestFinished:
        if request.request in self._running:
            raise UsageError(f"request {request.request!r} is being answered already")
        if self._prompts is None or self.state.state in ("starting", "loading", "failed"):
            raise SkippyError("the engine is not ready", hint="wait until it has loaded", code="not-ready")
        prompt = self._prompts.tokens(request)
        slot = await self._slots.checkout(request.session)
        try:
            chain = await self._chain_for(slot)
            generation = Generation(self._setting(request, prompt, slot, chain), self.emit)
            self._running[request.request] = generation
            finished = await generation.run()
            if slot.chain is not None and self._stages is not None:
                self._stages.measured(slot.chain)
                await self._judge_split(slot.chain, finished)
            return finished
        finally:
            self._running.pop(request.request, None)
            if slot.chain is not None and slot.chain.lost is not None:
                await slot.chain.close()  # stages stop working for it at once
            self._slots.give_back(slot)

    async def _judge_split(self, chain: Chain, finished: RequestFinished) -> None:
        """Warn, once, if this machine alone would have been faster."""
        if self._told_split or self._model is None or self._drafting is None or not chain.stages:
            return
        own_ms = self._drafting.costs.times(1).first[1]
        timings = finished.result["timings"]
        notice = await asyncio.to_thread(faster_alone, self.plan, self._model, chain.stages, own_ms, timings)
        if notice is not None:
            self._told_split = True
            self.emit(notice)

    def _setting(
        self, request: GenerateRequest, prompt: list[int], slot: Slot, chain: Chain
    ) -> GenerationSetting:
        assert self._prompts is not None
        assert self._stages is not None
        assert self._drafting is not None
        stages = self._stages
        speculation = self.plan.speculation
        if request.strategy:
            speculation = replace(speculation, strategy=request.strategy)
        rows = (info.prefill_rows for info in chain.stages)
        return GenerationSetting(
            request=request,
            prompt=prompt,
            slot=slot,
            chain=chain,
            prompts=self._prompts,
            drafting=self._drafting,
            speculation=speculation,
            context=min(info.context for info in chain.stages),
            window_rows=min(info.window_rows for info in chain.stages),
            prefill_rows=min(self.plan.compute.prefill_rows, *rows),
            model=self.model_json(),
            exact=self._exact(chain.stages),
            restarts=lambda: stages.restarts,
            recover=lambda begun: self._ensure_chain(slot, TIMEOUTS.redial if begun else TIMEOUTS.redial_new),
        )

    async def _chain_for(self, slot: Slot) -> Chain:
        """The slot's chain, opened anew if its links are to be delayed differently from now on."""
        assert self._stages is not None
        chain = slot.chain
        if chain is not None and chain.emulation != self._stages.emulation:
            await chain.close()
            slot.chain, slot.cached = None, []
        return await self._ensure_chain(slot, TIMEOUTS.redial_new)

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

    def set_emulation(self, emulation: LinkEmulation) -> None:
        """Delay every link like this from the next answer on. The model stays; caches are filled anew."""
        self.plan = replace(self.plan, topology=replace(self.plan.topology, emulation=emulation))
        if self._stages is not None:
            self._stages.emulation = emulation

    # -- what front ends see -----------------------------------------------------------------------

    def snapshot(self) -> list[Event]:
        """The events that bring a new front end up to date."""
        events: list[Event] = [self.state]
        if self.model_ready is not None:
            events.append(self.model_ready)
        if self._stages is not None:
            events.extend(self._stages.states.values())
        return events

    def model_json(self) -> dict[str, Any]:
        """The `model` object of the JSON result."""
        model = self._model
        assert model is not None
        return {
            "name": model.name,
            "architecture": model.architecture,
            "layers": model.n_layers,
            "fingerprint": model.fingerprint,
        }

    def _exact(self, stages: tuple[StageInfo, ...]) -> bool:
        """Whether rows of a window equal single rows on every stage and the wire loses nothing."""
        return self.plan.topology.wire is WireType.F32 and all(info.exact for info in stages)

    def _announce_model(self, model: ModelFile, stages: tuple[StageInfo, ...]) -> None:
        notes: list[str] = []
        if not all(info.can_rollback for info in stages):
            notes.append(f"speculation is off: the state of {model.architecture} cannot be rolled back")
        self.model_ready = ModelReady(
            at=time.monotonic(),
            name=model.name,
            path=str(model.source),
            architecture=model.architecture,
            layers=model.n_layers,
            fingerprint=model.fingerprint,
            native_mtp=stages[-1].native_mtp,
            context=min(info.context for info in stages),
            exact=self._exact(stages),
            wire=self.plan.topology.wire.value,
            strategy=self.plan.speculation.strategy,
            notes=tuple(notes),
        )
        self.emit(self.model_ready)

    def _set_state(self, state: str, detail: str = "", fraction: float = -1.0, code: str = "") -> None:
        self.state = EngineState(
            at=time.monotonic(), state=state, detail=detail, fraction=fraction, code=code
        )
        self.emit(self.state)


def refusal(request: str, error: SkippyError) -> RequestFinished:
    """The end of a request that could not be answered."""
    return RequestFinished(
        at=time.monotonic(),
        request=request,
        finish_reason="error",
        result={
            "text": "",
            "token_ids": [],
            "finish_reason": "error",
            "error": {"code": error.code, "message": error.message, "hint": error.hint},
        },
    )
