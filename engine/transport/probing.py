"""How far is it to another machine? Round trip and bandwidth of a link, measured by its opener.

Small rounds tell the round trip. Then each round sends four times as much as the one before, until one takes
long enough for the clock; so a slow line carries little and a fast one is still measured.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl as tls
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.errors import LinkError, ProtocolError
from engine.protocol.limits import MAX_CHUNK_BYTES, MAX_PROBE_BYTES
from engine.protocol.messages import Hello, LinkEmulation, Message, Role
from engine.protocol.node_messages import ProbeData, ProbeEcho
from engine.transport.link import Link
from engine.transport.opener import open_link
from engine.transport.timeouts import TIMEOUTS

ROUNDS = 7
FIRST_BYTES = 16 * 1024
MOST_BYTES = 8 << 20
LONG_ENOUGH = 0.08  # seconds that a round must take on the line


@dataclass(frozen=True, slots=True)
class Distance:
    """The way to another machine. `mbps` is in the direction of the opener's data."""

    rtt_ms: float
    mbps: float


async def probe_distance(
    url: str, token: str, *, emulation: LinkEmulation, ssl: tls.SSLContext | None = None
) -> Distance:
    """Measure the way to a node. Raises LinkError, HandshakeRefused."""
    hello = Hello(role=Role.PROBE, chain=secrets.token_hex(8), emulation=emulation)
    link = await open_link(url, hello, token=token, ssl=ssl)
    try:
        async with asyncio.timeout(TIMEOUTS.probe_peer):
            return await _measure(link)
    except TimeoutError:
        raise LinkError(f"{link.address} could not be probed within {TIMEOUTS.probe_peer:g} s") from None
    finally:
        await link.close("probe done")


async def _measure(link: Link) -> Distance:
    echoes = aiter(link)
    round_trips = sorted([await _round(link, echoes, 0) for _ in range(ROUNDS)])
    rtt = round_trips[ROUNDS // 4]  # what else the machines do makes some of them longer, and none shorter
    size = FIRST_BYTES
    while (on_line := await _round(link, echoes, size) - rtt) < LONG_ENOUGH and size < MOST_BYTES:
        size *= 4
    return Distance(rtt_ms=rtt * 1e3, mbps=size * 8e-6 / max(on_line, 1e-6))


async def _round(link: Link, echoes: AsyncIterator[Message], size: int) -> float:
    """Seconds from the first byte sent to the echo after the last."""
    begun = time.perf_counter()
    for start in range(0, size, MAX_CHUNK_BYTES):
        await link.send(ProbeData(last=False, data=bytes(min(MAX_CHUNK_BYTES, size - start))))
    await link.send(ProbeData(last=True))
    if isinstance(await anext(echoes, None), ProbeEcho):
        return time.perf_counter() - begun
    raise LinkError(f"the link to {link.address} broke while it was probed: {link.reason}")


def serve_probe(link: Link) -> None:
    """The other end: count what comes, and say so when asked."""
    received = 0

    def count(message: Message) -> None:
        nonlocal received
        if isinstance(message, ProbeData):
            received += len(message.data)
            if received > MAX_PROBE_BYTES:
                raise ProtocolError(f"a probe of more than {MAX_PROBE_BYTES} bytes", code="flood")
            if message.last:
                link.post(ProbeEcho(received))

    link.on_message = count
