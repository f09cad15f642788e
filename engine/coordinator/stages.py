"""The stages of a run: the one in this process, those in child processes, those that run elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from ssl import SSLContext
from typing import TypeVar

from engine.config.plan import RunPlan
from engine.coordinator.chain import Chain, ChainSettings, probe
from engine.coordinator.layout import (
    Layout,
    check_split,
    local_layout,
    remote_layout,
    stage_count,
    threads_per_stage,
)
from engine.coordinator.nodes import Nodes
from engine.errors import LinkError, SkippyError, StageLost
from engine.events import Event, StageState
from engine.model.file import ModelFile
from engine.model.paths import log_dir
from engine.model.pruning import GIB, keep_within
from engine.model.slices import slices_folder
from engine.planning.balance import balanced_split
from engine.protocol.messages import Hello, Hop, Role
from engine.stage.child import LocalStage
from engine.stage.process import StageSettings, load_worker
from engine.stage.worker import StageWorker
from engine.transport.timeouts import TIMEOUTS
from engine.transport.tls import client_context

Progress = Callable[[int, int], None]
MakeChain = Callable[[StageWorker | None], Chain]
T = TypeVar("T")
THIS_ENGINE = "this engine"
RTT_STEP = 0.1  # share by which a round trip has to change to be told again


RETRYABLE = frozenset({LinkError.code, StageLost.code, "silent"})
"""Codes of refusals that may be over in a moment; all others are about settings or secrets."""


async def _answers(hop: Hop, tls: SSLContext | None = None) -> bool:
    """Whether a stage shakes hands within the time for it."""
    try:
        async with asyncio.timeout(TIMEOUTS.probe):
            await probe(hop, tls)
    except (LinkError, TimeoutError):
        return False
    return True


async def _opened_or_closed(chain: Chain, settings: ChainSettings, identity: Hello) -> None:
    """Open a chain; nothing of it is left if that fails or is given up."""
    try:
        await chain.open(settings, identity)
    except BaseException:
        await chain.close()
        raise


def _pauses() -> Iterator[float]:
    """Seconds between attempts: twice as long each time, up to a bound."""
    pause = TIMEOUTS.redial_pause
    while True:
        yield pause
        pause = min(2 * pause, TIMEOUTS.redial_pause_most)


class Stages:
    """Starts what the plan asks for, starts lost processes again, and reports every change of state."""

    def __init__(
        self,
        plan: RunPlan,
        model: ModelFile,
        emit: Callable[[Event], None],
        tell: Callable[[str, float], None],
    ) -> None:
        """`tell` shows what is being done, and how much of it (-1 if that is not known)."""
        self.states: dict[int, StageState] = {}
        self.emulation = plan.topology.emulation  # of the lanes that will be opened
        self._plan = plan
        self._model = model
        self._emit = emit
        self._layout: Layout | None = None
        self._worker: StageWorker | None = None
        self._local: list[LocalStage] = []
        self._hops: list[Hop] = []  # where the stages elsewhere are reached now: address or standby
        authority = plan.topology.tls_ca
        self._tls = client_context(authority) if authority else None
        self._nodes = Nodes(plan, model, emit, tell, self._tls) if plan.topology.use_nodes else None

    @property
    def restarts(self) -> dict[int, int]:
        """How often each local process had to be started again."""
        return {stage.index: stage.restarts for stage in self._local}

    @property
    def context(self) -> int:
        """Tokens per sequence: what was asked for, at most what the model was trained for."""
        asked, trained = self._plan.compute.context, self._model.context_length
        return min(asked, trained) if trained else asked

    @property
    def window_rows(self) -> int:
        """Rows of the widest window: its drafts and the token before them."""
        return self._plan.speculation.window_max + 1

    async def start(self, progress: Progress) -> None:
        """Load stage 0 here and the other local stages in their processes, all at the same time.

        Raises SkippyError; nothing is left running then.
        """
        self._hops = [Hop(stage.url, stage.token) for stage in self._plan.topology.remote]
        self._layout = layout = await self._lay_out()
        compute = self._plan.compute
        settings = StageSettings(
            model=str(self._model.source),
            first=0,
            end=-1,
            threads=layout.threads,
            exact=compute.exact,
            gpu_layers=compute.gpu_layers,
            gpu_device=compute.gpu_device,
            context=self.context,
            sequences=compute.sequences,
            batch_rows=max(compute.prefill_rows, self.window_rows),
        )
        first_process = 0 if layout.own is None else 1
        self._local = [
            LocalStage(index, replace(settings, first=first, end=end), log_dir())
            for index, (first, end) in enumerate(layout.local, start=first_process)
        ]
        loading = [asyncio.create_task(self._start_process(stage)) for stage in self._local]
        if layout.own is not None:
            own = replace(settings, first=layout.own[0], end=layout.own[1])
            loading.append(asyncio.create_task(self._load_own(own, progress)))
        if self._nodes is not None:
            loading.append(asyncio.create_task(self._assign_nodes(self._nodes)))
        try:
            await asyncio.gather(*loading)
        except BaseException:
            await asyncio.gather(*loading, return_exceptions=True)
            await self.close()
            raise
        # Only now: slices of this run that are not loaded yet could be taken for some that nobody uses.
        await asyncio.to_thread(keep_within, slices_folder(), int(compute.slice_cache_gib * GIB))

    async def close(self) -> None:
        """End the processes and the compute thread, and leave the nodes."""
        await asyncio.gather(*(stage.stop() for stage in self._local))
        if self._nodes is not None:
            await self._nodes.close()
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)

    async def reopen(self, chain: MakeChain, *, patience: float, direct: bool = True) -> Chain:
        """A lane in place of a lost one.

        Local processes are started again first, and nodes asked to, which takes as long as loading does.
        Nodes, stages elsewhere and their standbys are dialled until one attempt succeeds, for `patience`
        seconds.
        Raises StageLost naming the last cause, or at once what no further attempt would change.
        """
        await asyncio.gather(*(self._restart_if_lost(stage) for stage in self._local))
        if self._nodes is not None:
            await self._patiently(self._nodes.reach, patience)
            await self._assign_nodes(self._nodes)
        return await self._patiently(lambda: self.open(chain, direct=direct), patience)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], patience: float) -> T:
        """Try until it works, for some seconds. Raises StageLost naming the last cause, or at once what no
        further attempt would change."""
        cause: SkippyError = StageLost("the stages do not answer")
        try:
            async with asyncio.timeout(patience):
                for pause in _pauses():
                    try:
                        return await attempt()
                    except SkippyError as error:
                        if error.code not in RETRYABLE:
                            raise
                        cause = error
                    self._dialling(cause)
                    await asyncio.sleep(pause)
        except TimeoutError:
            pass
        raise StageLost(
            f"no way back within {patience:g} s: {cause.message}",
            hint=cause.hint or "start the stage again",
            stage=getattr(cause, "stage", -1),
        )

    async def open(self, chain: MakeChain, *, direct: bool = True) -> Chain:
        """A lane through all stages; not `direct`: without a return link.

        Raises LinkError, HandshakeRefused.
        """
        assert self._layout is not None
        await asyncio.gather(*map(self._choose_address, range(len(self._plan.topology.remote))))
        opened = chain(self._worker)
        topology, model = self._plan.topology, self._model
        await _opened_or_closed(
            opened,
            ChainSettings(
                hops=tuple(self._hops) or tuple(stage.hop for stage in self._local),
                direct=direct,
                tls=self._tls,
                wire=topology.wire,
                emulation=self.emulation,
                window_rows=self.window_rows,
                prefill_rows=self._plan.compute.prefill_rows,
                context=self._layout.context or self.context,
                sequences=1,
            ),
            Hello(
                role=Role.LANE,
                chain="",
                fingerprint=model.fingerprint,
                architecture=model.architecture,
                n_embd=model.n_embd,
                n_layers=model.n_layers,
            ),
        )
        for index, info in enumerate(opened.stages):
            layers = (info.first_layer, info.end_layer)
            self._changed(index, "ready", layers, info.where or THIS_ENGINE, pid=info.pid)
        return opened

    def lost(self, error: StageLost) -> None:
        """A chain broke at a stage."""
        state = self.states.get(error.stage)
        if state is not None:
            self._changed(state.index, "unreachable", state.layers, state.where, reason=str(error))

    def measured(self, chain: Chain) -> None:
        """Tell the round trip to the first stage behind a link, once it is known or differs by a tenth."""
        index = 0 if self._worker is None else 1
        state = self.states.get(index)
        if state is not None and abs(chain.rtt_ms - state.rtt_ms) > RTT_STEP * max(state.rtt_ms, 0.1):
            state = self.states[index] = replace(state, at=time.monotonic(), rtt_ms=chain.rtt_ms)
            self._emit(state)

    def _dialling(self, cause: SkippyError) -> None:
        """Another attempt to reach stages elsewhere failed; more will follow."""
        for index, state in self.states.items():
            if state.state == "unreachable":
                self._changed(index, state.state, state.layers, state.where, reason=str(cause))

    async def _restart_if_lost(self, stage: LocalStage) -> None:
        # The end of a process may be noticed later than the end of its link, and a process may hang.
        if not (stage.running and await _answers(stage.hop)):
            await self._start_process(stage)

    async def _choose_address(self, place: int) -> None:
        """For a stage elsewhere with standbys: the first of its addresses that answers, the present one
        before all others. Without standbys there is nothing to choose, and the stage need not be
        reachable from here."""
        stage = self._plan.topology.remote[place]
        if not stage.standby:
            return
        present = self._hops[place]
        others = [Hop(url, stage.token) for url in (stage.url, *stage.standby) if url != present.url]
        for hop in (present, *others):
            if await _answers(hop, self._tls):
                self._hops[place] = hop
                return

    async def _assign_nodes(self, nodes: Nodes) -> None:
        """Have the nodes serve their layers, or make sure that they do."""
        for index, span in enumerate(nodes.spans, start=1):
            if index not in self.states:
                self._changed(index, "starting", span, nodes.where(index))
        rows = max(self._plan.compute.prefill_rows, self.window_rows)
        self._hops = await nodes.assign(self.context, rows)

    async def _lay_out(self) -> Layout:
        plan, model = self._plan, self._model
        if self._nodes is not None:
            threads = threads_per_stage(plan, 1)
            return Layout(own=await self._nodes.choose(threads, self.context), threads=threads)
        if plan.topology.remote:
            await self._choose_address(0)
            return remote_layout(plan, model, await probe(self._hops[0], self._tls))
        count = stage_count(plan, model)
        balanced: tuple[int, ...] = ()
        if plan.topology.split:
            check_split(plan.topology.split, model.n_layers)
        else:
            threads = threads_per_stage(plan, count)
            balanced = await asyncio.to_thread(balanced_split, model, count, threads)
        return local_layout(plan, model, balanced)

    async def _load_own(self, settings: StageSettings, progress: Progress) -> None:
        layers = (settings.first, settings.end)
        self._changed(0, "starting", layers, THIS_ENGINE)
        self._worker = await asyncio.to_thread(load_worker, settings, progress)
        self._changed(0, "ready", layers, THIS_ENGINE)

    async def _start_process(self, stage: LocalStage) -> None:
        state = "restarting" if stage.restarts >= 0 else "starting"
        self._changed(stage.index, state, (stage.settings.first, stage.settings.end), "this machine")
        await stage.start()

    def _changed(
        self, index: int, state: str, layers: tuple[int, int], where: str, *, reason: str = "", pid: int = 0
    ) -> None:
        now, old = time.monotonic(), self.states.get(index)
        event = StageState(
            at=now,
            since=old.since if old is not None and old.state == state else now,
            index=index,
            state=state,
            layers=layers,
            where=where,
            reason=reason,
            rtt_ms=old.rtt_ms if old is not None else 0.0,
            pid=pid,
            restarts=max(0, self.restarts.get(index, 0)),
        )
        self.states[index] = event
        self._emit(event)
