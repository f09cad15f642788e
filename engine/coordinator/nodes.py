"""The nodes of a run: asked, timed, probed, chosen and assigned their layers, and kept at it.

Whoever cannot be reached or refuses is left out with a warning, as long as the others suffice. Each step is
an event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ssl import SSLContext

from engine.config.plan import RunPlan
from engine.coordinator.nodes_link import NodeLink
from engine.coordinator.nodes_offer import OfferedSlice, offer
from engine.coordinator.nodes_plan import OWN, UNREACHABLE_MS, Machine, cluster_of, pinned_spans, plan_spans
from engine.errors import ConfigError, LinkError, SkippyError, reason_of
from engine.events import Event, NodeState, Notice
from engine.model.file import ModelFile
from engine.planning.measure import compute_costs
from engine.planning.profiles import Cluster, LinkProfile
from engine.planning.synthetic import measuring_header
from engine.protocol.messages import Hop
from engine.protocol.node_messages import Assign, NodeInfo
from engine.stage.node_options import free_memory
from engine.transport.probing import Distance, probe_distance
from engine.transport.timeouts import TIMEOUTS
from engine.transport.tls import client_context

log = logging.getLogger("skippy.nodes")

Emit = Callable[[Event], None]
Progress = Callable[[str, float], None]
"""What is being done, and how much of it; -1 if that is not known."""

TELL_SECONDS = 0.1
"""Between two reports of how far something is."""

LEFT_OUT = "node-left-out"


@dataclass(slots=True)
class _Placed:
    """Layers on a node."""

    link: NodeLink
    first: int
    end: int
    stage: int  # its place in the chain
    slice: OfferedSlice
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one question at a time


class Nodes:
    """Takes a run from addresses to stages that can be dialled."""

    def __init__(
        self, plan: RunPlan, model: ModelFile, emit: Emit, progress: Progress, tls: SSLContext | None
    ) -> None:
        self._plan = plan
        self._model = model
        self._emit = emit
        self._progress = progress
        self._tls = tls
        self._links = [NodeLink(settings, tls) for settings in plan.nodes]
        self._placed: list[_Placed] = []
        self._holding: list[asyncio.Task[None]] = []

    # -- choosing ----------------------------------------------------------------------------------

    async def choose(self, threads: int, context: int) -> tuple[int, int]:
        """Decide who serves which layers; returns those of the engine itself.

        `threads` and `context` (tokens per sequence) are the engine's own. Raises SkippyError if no node can
        be used, or the layers do not fit.
        """
        split = self._plan.topology.split
        if split:  # nothing is left to choose
            reached = [link.settings.name for link in await self._describe()]
            spans = pinned_spans(split, self._model.n_layers, reached)
        else:
            cluster = await self.survey(threads)
            spans = await asyncio.to_thread(plan_spans, self._model, cluster, self._plan, context)
        for line in spans.explanation:
            self._say(line)
        for line in spans.warnings:
            self._say(line, "warning")
        names = {link.settings.name: link for link in self._links}
        for stage, (name, first, end) in enumerate(spans.on_nodes, start=1):
            self._placed.append(await self._place(names[name], stage, first, end))
        await self._release_unused()
        return spans.own

    async def survey(self, threads: int) -> Cluster:
        """Time this machine (with so many threads) and all nodes, and the ways between them.

        Raises LinkError if no node can be used.
        """
        infos = await self._describe()
        machines = [await self._measure_own(threads), *await self._measure(infos)]
        return cluster_of(machines, await self._probe(list(infos)))

    async def _describe(self) -> dict[NodeLink, NodeInfo]:
        if not self._links:
            hint = "write [[nodes]] into skippy.toml, or name them with --node"
            raise ConfigError("there are no nodes to use", hint=hint)
        self._progress("asking the nodes", -1.0)

        async def ask(link: NodeLink) -> NodeInfo:
            self._tell(link, "dialling")
            await link.open()
            info = await link.describe()
            self._tell(link, "described", detail=_in_words(info))
            return info

        answers = await self._all(self._links, ask)
        if not answers:
            raise LinkError("none of the nodes can be used", hint="see the warnings, or run without nodes")
        return answers

    async def _measure_own(self, threads: int) -> Machine:
        self._progress("timing this machine", -1.0)
        costs = None
        try:
            costs = await asyncio.to_thread(
                compute_costs, self._model, threads, gpu_layers=self._plan.compute.gpu_layers
            )
        except (SkippyError, OSError) as error:
            self._say(f"this machine could not be timed: {reason_of(error)}")
        return Machine(OWN, "", free_memory(), threads, costs)

    async def _measure(self, infos: dict[NodeLink, NodeInfo]) -> list[Machine]:
        """Time the model on every node; those of one machine take turns, or they would disturb each other."""
        header = await asyncio.to_thread(_header_of, self._model)
        machines: dict[str, list[NodeLink]] = defaultdict(list)
        for link, info in infos.items():
            machines[info.host].append(link)
        threads = self._plan.compute.threads
        timed: dict[NodeLink, Machine] = {}

        async def measure_in_turn(links: list[NodeLink]) -> None:
            for link in links:
                info, settings = infos[link], link.settings
                costs, used = None, threads or info.cores
                self._tell(link, "measuring")
                try:
                    if header:
                        costs, used = await link.measure(header, threads)
                except SkippyError as error:
                    if not link.is_open:
                        self._leave_out(link, error)
                        continue
                    self._say(f"{settings.name} could not be timed: {error}")
                limit = int(settings.memory_limit_gib * (1 << 30)) or info.free_memory
                free = min(info.free_memory, limit)
                timed[link] = Machine(settings.name, settings.url, free, used, costs)

        self._progress("timing the nodes", -1.0)
        await asyncio.gather(*map(measure_in_turn, machines.values()))
        return [timed[link] for link in infos if link in timed]

    async def _probe(self, links: list[NodeLink]) -> list[LinkProfile]:
        """Measure the way from this machine to every node, and between all of them.

        In round `k` each machine probes the one that stands `k` places after it, so that no line carries two
        probes at a time in the same direction.
        """
        self._progress("probing the ways between the nodes", -1.0)
        links = [link for link in links if link.is_open]
        found: list[LinkProfile] = []
        for distance in range(1, len(links) + 1):
            round_ = [self._probe_own(links[distance - 1])]
            if distance < len(links):
                pairs = [(link, links[(i + distance) % len(links)]) for i, link in enumerate(links)]
                round_ += [self._probe_pair(link, peer) for link, peer in pairs]
            found += await asyncio.gather(*round_)
        return found

    async def _probe_own(self, link: NodeLink) -> LinkProfile:
        settings = link.settings
        distance = probe_distance(
            settings.url, settings.token, emulation=self._plan.topology.emulation, ssl=self._tls
        )
        return await self._way(OWN, settings.name, distance)

    async def _probe_pair(self, link: NodeLink, peer: NodeLink) -> LinkProfile:
        self._tell(link, "probing", detail=peer.settings.name)
        distance = link.probe(peer.settings, self._plan.topology.emulation)
        return await self._way(link.settings.name, peer.settings.name, distance)

    async def _way(self, sender: str, receiver: str, probing: Awaitable[Distance]) -> LinkProfile:
        try:
            distance = await probing
        except SkippyError as error:
            self._say(f"there is no way from {sender} to {receiver}: {error}")
            distance = Distance(UNREACHABLE_MS, 0.0)
        return LinkProfile(sender, receiver, distance.rtt_ms, distance.mbps)

    async def _place(self, link: NodeLink, stage: int, first: int, end: int) -> _Placed:
        loop, told = asyncio.get_running_loop(), 0.0

        def hashing(done: int, total: int) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told > TELL_SECONDS:
                told = now
                loop.call_soon_threadsafe(self._progress, f"hashing layers {first}:{end}", done / total)

        offered = await asyncio.to_thread(offer, self._model, first, end, hashing)
        return _Placed(link, first, end, stage, offered)

    async def _release_unused(self) -> None:
        """Nodes without layers may work for somebody else."""
        used = {placed.link for placed in self._placed}
        unused = [link for link in self._links if link not in used and link.is_open]
        for link in unused:
            self._tell(link, "left-out", detail="it has no layers in this plan")
        await asyncio.gather(*(link.close() for link in unused))

    # -- serving -----------------------------------------------------------------------------------

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Layers of each stage on a node, in order."""
        return [(placed.first, placed.end) for placed in self._placed]

    def where(self, stage: int) -> str:
        """The node of a stage, in words."""
        return self._placed[stage - 1].link.settings.name

    async def reach(self) -> None:
        """Dial the nodes whose link broke. Raises SkippyError naming one that cannot be reached."""
        await asyncio.gather(*(self._reach_one(placed) for placed in self._placed))

    async def assign(self, context: int, batch_rows: int) -> list[Hop]:
        """Have every chosen node serve its layers, or make sure that it does; returns where.

        Raises SkippyError naming a node that does not.
        """
        work = [self._assign_one(placed, context, batch_rows) for placed in self._placed]
        hops = list(await asyncio.gather(*work))
        if not self._holding:
            self._holding = [
                asyncio.create_task(self._hold(placed, context, batch_rows)) for placed in self._placed
            ]
        return hops

    async def close(self) -> None:
        """Leave the nodes, which keep their layers for a while."""
        for task in self._holding:
            task.cancel()
        await asyncio.gather(*self._holding, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links))

    async def _hold(self, placed: _Placed, context: int, batch_rows: int) -> None:
        """A node whose link breaks thinks that the engine is gone, and forgets its layers after a while."""
        while True:
            await placed.link.closed()
            try:
                await self._reach_one(placed)
                await self._assign_one(placed, context, batch_rows)
            except SkippyError as error:
                log.info("%s is not back yet: %s", placed.link.settings.name, error)
                await asyncio.sleep(TIMEOUTS.redial_pause_most)

    async def _reach_one(self, placed: _Placed) -> None:
        async with placed.turn:
            if not placed.link.is_open:
                await placed.link.open()

    async def _assign_one(self, placed: _Placed, context: int, batch_rows: int) -> Hop:
        async with placed.turn:
            return await self._assign_in_turn(placed, context, batch_rows)

    async def _assign_in_turn(self, placed: _Placed, context: int, batch_rows: int) -> Hop:
        link, compute, offered = placed.link, self._plan.compute, placed.slice
        layers = (placed.first, placed.end)

        def report(state: str, done: int, total: int) -> None:
            self._tell(link, state, layers=layers, done=done, total=total)
            words = f"{link.settings.name}: {state} layers {placed.first}:{placed.end}"
            self._progress(words, done / total if total else -1.0)

        question = Assign(
            fingerprint=self._model.fingerprint,
            model_name=self._model.name,
            first=placed.first,
            end=placed.end,
            sha256=offered.sha256,
            size=offered.size,
            offered=link.settings.allow_transfer and offered.pieces is not None,
            stage_index=placed.stage,
            threads=compute.threads,
            exact=compute.exact,
            context=context,
            sequences=compute.sequences,
            batch_rows=batch_rows,
        )
        hop, assigned = await link.assign(question, offered, report)
        self._tell(link, "ready", layers=layers, detail=assigned.source, total=offered.size)
        return hop

    # -- telling -----------------------------------------------------------------------------------

    async def _all(
        self, links: list[NodeLink], ask: Callable[[NodeLink], Awaitable[NodeInfo]]
    ) -> dict[NodeLink, NodeInfo]:
        """The answers of those who answer; the others are left out."""
        results = await asyncio.gather(*map(ask, links), return_exceptions=True)
        answers: dict[NodeLink, NodeInfo] = {}
        for link, result in zip(links, results, strict=True):
            if isinstance(result, SkippyError):
                self._leave_out(link, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                answers[link] = result
        return answers

    def _leave_out(self, link: NodeLink, error: SkippyError) -> None:
        self._tell(link, "left-out", detail=str(error))
        message = f"{link.settings.name} is left out: {error.message}"
        self._emit(
            Notice(at=time.monotonic(), level="warning", code=LEFT_OUT, message=message, hint=error.hint)
        )

    def _say(self, text: str, level: str = "info") -> None:
        self._emit(Notice(at=time.monotonic(), level=level, code="nodes", message=text))

    def _tell(
        self,
        link: NodeLink,
        state: str,
        *,
        layers: tuple[int, int] | tuple[()] = (),
        done: int = 0,
        total: int = 0,
        detail: str = "",
    ) -> None:
        self._emit(
            NodeState(
                at=time.monotonic(),
                name=link.settings.name,
                url=link.settings.url,
                state=state,
                layers=layers,
                done=done,
                total=total,
                bytes_sent=link.bytes_sent,
                detail=detail,
            )
        )


async def survey(plan: RunPlan, model: ModelFile, threads: int) -> Cluster:
    """What `skippy-engine plan` plans for: the nodes of the plan and this machine, as they are now.

    Whoever is left out is named in the log. Raises LinkError if no node can be used.
    """
    authority = plan.topology.tls_ca
    tls = client_context(authority) if authority else None
    nodes = Nodes(plan, model, _log_warnings, lambda detail, fraction: None, tls)
    try:
        return await nodes.survey(threads)
    finally:
        await nodes.close()


def _log_warnings(event: Event) -> None:
    if isinstance(event, Notice):
        log.log(logging.WARNING if event.level == "warning" else logging.INFO, "%s", event.message)


def _header_of(model: ModelFile) -> bytes:
    """What nodes time a model by; empty if it cannot be timed."""
    try:
        return measuring_header(model)
    except SkippyError:
        return b""


def _in_words(info: NodeInfo) -> str:
    takes = "takes slices" if info.accepts_slices else "takes no slices"
    memory = f"{info.free_memory / (1 << 30):.1f} GiB free"
    return f"{info.host}, {info.cores} cores, {memory}, {takes}, has {len(info.slices)}"
