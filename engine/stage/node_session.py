"""What a node does for the engine that it works for: one question after the other."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from engine.errors import LinkError, SkippyError
from engine.protocol.messages import ErrorMessage, LinkEmulation, Message
from engine.protocol.node_messages import (
    Assign,
    Assigned,
    AssignProgress,
    Describe,
    Measure,
    NodeInfo,
    PeerProbed,
    ProbePeer,
    SliceChunk,
    SliceWanted,
)
from engine.stage.node_assignment import Assignment, find_slice, missing_slice
from engine.stage.node_measure import measure
from engine.stage.node_options import cores, free_memory
from engine.stage.node_store import IncomingSlice
from engine.transport.link import Link
from engine.transport.probing import probe_distance

if TYPE_CHECKING:
    from engine.stage.node import Node

log = logging.getLogger("skippy.node")

A = TypeVar("A")
T = TypeVar("T")

REPORT_SECONDS = 0.2
"""Between two reports of how far something is."""


class NodeSession:
    """One engine. `run` is cancelled when its link ends."""

    def __init__(self, node: Node, link: Link) -> None:
        self._node = node
        self._link = link
        self._messages: AsyncIterator[Message] = aiter(link)
        self._loop = asyncio.get_running_loop()
        self._reported = 0.0

    async def run(self) -> None:
        """Answer until the link ends."""
        async for message in self._messages:
            try:
                answer = await self._answer(message)
            except SkippyError as error:
                log.warning("%s: %s", type(message).__name__, error)
                answer = ErrorMessage(code=error.code, reason=str(error))
            except Exception as error:  # a fault of ours must not leave an engine waiting
                log.exception("%s", type(message).__name__)
                answer = ErrorMessage(code="internal", reason=f"{type(error).__name__}: {error}")
            if answer is not None:
                self._link.post(answer)

    async def _answer(self, question: Message) -> Message | None:
        match question:
            case Describe():
                return await asyncio.to_thread(self._describe)
            case Measure():
                return await measure(question, self._node.options)
            case ProbePeer():
                return await self._probe(question)
            case Assign():
                return await self._assign(question)
            case _:
                return None  # an ErrorMessage: the engine says goodbye

    def _describe(self) -> NodeInfo:
        node = self._node
        loaded = node.assignment.stage.pid if node.assignment is not None else 0
        return NodeInfo(
            host=socket.gethostname(),
            cores=cores(),
            free_memory=free_memory(loaded),
            free_disk=node.store.free_bytes,
            accepts_slices=node.options.accept_slices,
            slices=node.store.held(),
            models=node.models.fingerprints(),
        )

    async def _probe(self, question: ProbePeer) -> PeerProbed:
        emulation = LinkEmulation(rtt_ms=question.emulate_rtt_ms, mbps=question.emulate_mbps)
        distance = await probe_distance(
            question.url, question.token, emulation=emulation, ssl=self._node.trusted
        )
        return PeerProbed(question.url, distance.rtt_ms, distance.mbps)

    async def _assign(self, assign: Assign) -> Assigned | None:
        node = self._node
        current = node.assignment
        if current is not None and current.fits(assign):
            running = await current.running()
            if running is not None:
                return running
            await current.kill()
        await node.drop_assignment()
        found = await asyncio.to_thread(find_slice, assign, node.store, node.models, self._report_from_thread)
        if found is None:
            if not (assign.offered and node.options.accept_slices):
                raise missing_slice(assign, node.options)
            received = await self._receive(assign)
            if received is None:
                return None
            found = received, "received"
        self._report("loading", 0, 0)
        node.assignment = Assignment(assign, node.options, *found)
        assigned = await node.assignment.start()
        await asyncio.to_thread(node.store.keep_within)
        return assigned

    async def _receive(self, assign: Assign) -> Path | None:
        """Take the slice; None if that failed, and then the link ends: chunks may still be under way."""
        try:
            with IncomingSlice(assign, self._node.store) as incoming:
                self._link.post(SliceWanted(incoming.offset))
                while incoming.offset < assign.size:
                    await _to_its_end(incoming.write, await self._next_chunk())
                    self._report("receiving", incoming.offset, assign.size)
                return await _to_its_end(incoming.finish, self._checking_from_thread)
        except SkippyError as error:
            log.warning("layers %d:%d of %s: %s", assign.first, assign.end, assign.model_name, error)
            self._link.fail(error)
            return None

    async def _next_chunk(self) -> bytes:
        message = await anext(self._messages, None)
        if isinstance(message, SliceChunk):
            return message.data
        raise LinkError(f"the slice from {self._link.address} broke off")

    def _report(self, state: str, done: int, total: int) -> None:
        """Tell the engine how far it is, now and then."""
        now = time.monotonic()
        due = done in (0, total) or now - self._reported > REPORT_SECONDS
        if due and not self._link.closed.is_set():
            self._reported = now
            self._link.post(AssignProgress(state, done, total))

    def _report_from_thread(self, state: str, done: int, total: int) -> None:
        self._loop.call_soon_threadsafe(self._report, state, done, total)

    def _checking_from_thread(self, done: int, total: int) -> None:
        self._report_from_thread("checking", done, total)


async def _to_its_end(work: Callable[[A], T], argument: A) -> T:
    """Run something in a thread, and wait for it also when cancelled: it uses an open file."""
    running = asyncio.ensure_future(asyncio.to_thread(work, argument))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
