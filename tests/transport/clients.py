"""Clients that behave, and clients that do not."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from dataclasses import replace

from engine.protocol.checksum import seal
from engine.protocol.codec import encode
from engine.protocol.messages import ConfigureGeneration, Message
from tests.transport.conftest import PATIENT, Network, Stage

CONFIGURE = ConfigureGeneration(1)

BRISK = replace(PATIENT, close=0.1)
"""For clients that do not take part in the closing handshake."""


async def works(network: Network, stage: Stage, token: str = "") -> None:
    """A well-behaved client is served."""
    opener = await network.open(stage, token=token)
    served = await stage.peer()
    assert opener.link is not None
    opener.link.post(CONFIGURE)
    assert await served.next() == CONFIGURE
    await opener.link.close()
    await served.closed()


async def refusals(stage: Stage, count: int) -> None:
    """Wait until the server has counted so many refusals (it counts when a connection has ended)."""
    async with asyncio.timeout(20):
        while stage.server.refused < count:
            await asyncio.sleep(0.01)
    assert stage.server.refused == count


class Raw:
    """A client that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def connect(stage: Stage) -> Raw:
        return Raw(*await asyncio.open_connection("127.0.0.1", stage.server.port))

    async def upgrade(self, *headers: str, key: str | None = None) -> bytes:
        """Ask for a WebSocket; the head of the response."""
        secret = key or base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET / HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade",
            f"Sec-WebSocket-Key: {secret}", "Sec-WebSocket-Version: 13", *headers, "", "",
        ]  # fmt: skip
        self.writer.write("\r\n".join(lines).encode())
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)

    def frame(self, payload: bytes, opcode: int = 2, fin: bool = True) -> None:
        """Send a WebSocket frame (masked with zeros)."""
        head = bytes([opcode | (0x80 if fin else 0)])
        if len(payload) < 126:
            head += bytes([0x80 | len(payload)])
        elif len(payload) < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", len(payload))
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", len(payload))
        self.writer.write(head + bytes(4) + payload)

    async def rest(self) -> bytes:
        """Everything that comes until the server hangs up."""
        try:
            return await asyncio.wait_for(self.reader.read(), 20)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.transport.abort()


def sealed(message: Message) -> bytes:
    """A message as it stands in a WebSocket frame."""
    return seal(encode(message))
