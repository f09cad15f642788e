"""One node as its coordinator sees it: questions out, answers in, and a slice if it has to be sent."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from ssl import SSLContext
from typing import TypeVar

import orjson

from engine.config.nodes import NodeSettings
from engine.config.plain import from_plain
from engine.coordinator.nodes_offer import OfferedSlice
from engine.errors import Busy, HandshakeRefused, LinkError, ProtocolError, SkippyError, reported_error
from engine.planning.profiles import ComputeCosts
from engine.protocol.limits import MAX_CHUNK_BYTES
from engine.protocol.messages import ErrorMessage, Hello, Hop, LinkEmulation, Message, Role
from engine.protocol.node_messages import (
    Assign,
    Assigned,
    AssignProgress,
    Describe,
    Measure,
    Measured,
    NodeInfo,
    PeerProbed,
    ProbePeer,
    SliceChunk,
    SliceWanted,
)
from engine.transport.addresses import parse_url
from engine.transport.link import Link
from engine.transport.opener import open_link
from engine.transport.probing import Distance
from engine.transport.timeouts import TIMEOUTS

Report = Callable[[str, int, int], None]
"""Called with what a node is doing, and how much of how much of it."""

A = TypeVar("A")

READ_AHEAD = 4 << 20
"""Bytes of a slice that are read at a time, in a thread."""

_BROKEN = frozenset({LinkError.code, "silent", "checksum"})
"""Codes of what may be over on the next link."""


class NodeLink:
    """A link to a node, which works for nobody else while it is open."""

    def __init__(self, settings: NodeSettings, tls: SSLContext | None = None) -> None:
        self.settings = settings
        self.bytes_sent = 0  # of slices
        self._tls = tls
        self._link: Link | None = None
        self._messages: AsyncIterator[Message] = _nothing()

    @property
    def is_open(self) -> bool:
        return self._link is not None and not self._link.closed.is_set()

    async def closed(self) -> None:
        """Wait until the link has ended."""
        if self._link is not None:
            await self._link.closed.wait()

    async def open(self) -> None:
        """Dial the node. One that still works for another engine is asked again for a moment.

        Raises LinkError, Unauthorized, HandshakeRefused, Busy.
        """
        hello = Hello(role=Role.NODE, chain=secrets.token_hex(8))
        deadline = time.monotonic() + TIMEOUTS.node_busy
        while True:
            try:
                self._link = await open_link(
                    self.settings.url, hello, token=self.settings.token, ssl=self._tls
                )
                break
            except HandshakeRefused as error:
                if error.code != Busy.code:
                    raise
                if time.monotonic() > deadline:
                    raise Busy(error.message, hint=error.hint) from error
                await asyncio.sleep(TIMEOUTS.redial_pause)
        self._messages = aiter(self._link)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close("the engine stops")

    async def describe(self) -> NodeInfo:
        """What the node is and has. Raises LinkError, and whatever the node reports; so do the others."""
        return await self._ask(Describe(), NodeInfo)

    async def measure(self, header: bytes, threads: int) -> tuple[ComputeCosts, int]:
        """How fast it computes a model, and with how many threads."""
        measured = await self._ask(Measure(threads, header), Measured)
        try:
            return from_plain(ComputeCosts, orjson.loads(measured.costs), "costs"), measured.threads
        except (orjson.JSONDecodeError, SkippyError) as error:
            raise ProtocolError(f"{self.settings.name} has measured nonsense: {error}") from error

    async def probe(self, peer: NodeSettings, emulation: LinkEmulation) -> Distance:
        """The way from this node to another."""
        question = ProbePeer(peer.url, peer.token, emulation.rtt_ms, emulation.mbps)
        probed = await self._ask(question, PeerProbed)
        return Distance(probed.rtt_ms, probed.mbps)

    async def assign(self, assign: Assign, offered: OfferedSlice, report: Report) -> tuple[Hop, Assigned]:
        """Have layers served. A link that breaks while the slice is sent is opened again, and the rest sent.

        Returns where the stage listens, and what the node said.
        """
        while True:
            sent_before = self.bytes_sent
            try:
                assigned = await self._assign_once(assign, offered, report)
                break
            except SkippyError as error:
                if error.code not in _BROKEN or self.bytes_sent == sent_before:
                    raise
            await self.open()
        address = parse_url(self.settings.url)
        scheme = "wss" if address.secure else "ws"
        host = f"[{address.host}]" if ":" in address.host else address.host
        return Hop(f"{scheme}://{host}:{assigned.port}", assigned.token), assigned

    async def _assign_once(self, assign: Assign, offered: OfferedSlice, report: Report) -> Assigned:
        await self._send(assign)
        sending: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(TIMEOUTS.load):
                while True:
                    match await self._next():
                        case AssignProgress() as progress:
                            report(progress.state, progress.done, progress.total)
                        case SliceWanted(offset=offset):
                            sending = asyncio.create_task(self._send_slice(offered, offset))
                        case Assigned() as assigned:
                            return assigned
        except TimeoutError:
            raise LinkError(f"{self.settings.name} was not ready within {TIMEOUTS.load:g} s") from None
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.wait({sending})

    async def _send_slice(self, offered: OfferedSlice, offset: int) -> None:
        """Send the rest of a slice, as fast as the node takes it. A fault ends the link: somebody waits."""
        assert offered.pieces is not None
        assert self._link is not None
        pieces = offered.pieces(offset)
        try:
            while data := await asyncio.to_thread(_read_ahead, pieces):
                for start in range(0, len(data), MAX_CHUNK_BYTES):
                    chunk = SliceChunk(offset, data[start : start + MAX_CHUNK_BYTES])
                    await self._link.send(chunk)
                    offset += len(chunk.data)
                    self.bytes_sent += len(chunk.data)
        except LinkError:
            pass  # whoever waits for the answer is told
        except SkippyError as error:
            self._link.fail(error)

    async def _ask(self, question: Message, kind: type[A]) -> A:
        await self._send(question)
        try:
            async with asyncio.timeout(TIMEOUTS.node_answer):
                answer = await self._next()
        except TimeoutError:
            name = type(question).__name__
            raise LinkError(
                f"{self.settings.name} has not answered {name} within {TIMEOUTS.node_answer:g} s"
            ) from None
        assert isinstance(answer, kind)  # the protocol allows nothing else now
        return answer

    async def _send(self, question: Message) -> None:
        if self._link is None:
            raise LinkError(f"there is no link to {self.settings.name}")
        await self._link.send(question)

    async def _next(self) -> Message:
        message = await anext(self._messages, None)
        if message is None:
            assert self._link is not None
            code = self._link.error.code if self._link.error is not None else LinkError.code
            raise LinkError(f"the link to {self.settings.name} broke: {self._link.reason}", code=code)
        if isinstance(message, ErrorMessage):
            raise reported_error(f"{self.settings.name}: {message.reason}", code=message.code)
        return message


async def _nothing() -> AsyncIterator[Message]:
    return
    yield


def _read_ahead(pieces: Iterator[memoryview]) -> bytes:
    """The next few megabytes of a slice; empty at its end."""
    data = bytearray()
    while len(data) < READ_AHEAD and (piece := next(pieces, None)) is not None:
        data += piece
    return bytes(data)
