"""The frames of node links that are not JSON: their layout, and their encoders and decoders for `codec`."""

from __future__ import annotations

from engine.errors import ProtocolError
from engine.protocol import frames
from engine.protocol.frame_checks import Buffer, expect_head
from engine.protocol.frames import FrameType
from engine.protocol.limits import MAX_CHUNK_BYTES, MAX_HEADER_BYTES, Limits
from engine.protocol.messages import PROTOCOL_VERSION, WireType
from engine.protocol.node_messages import Measure, ProbeData, ProbeEcho, SliceChunk


def encode_measure(message: Measure, wire: WireType) -> bytes:
    _expect_bytes("a header", message.header, MAX_HEADER_BYTES)
    return frames.MEASURE.pack(PROTOCOL_VERSION, FrameType.MEASURE, 0, message.threads) + message.header


def decode_measure(data: Buffer, flags: int, n_embd: int, limits: Limits) -> Measure:
    expect_head(data, frames.MEASURE)
    threads = frames.MEASURE.unpack_from(data)[3]
    return Measure(threads, _rest("a header", data, frames.MEASURE.size, MAX_HEADER_BYTES))


def encode_chunk(message: SliceChunk, wire: WireType) -> bytes:
    _expect_bytes("a chunk", message.data, MAX_CHUNK_BYTES)
    return frames.CHUNK.pack(PROTOCOL_VERSION, FrameType.CHUNK, 0, message.offset) + message.data


def decode_chunk(data: Buffer, flags: int, n_embd: int, limits: Limits) -> SliceChunk:
    expect_head(data, frames.CHUNK)
    offset = frames.CHUNK.unpack_from(data)[3]
    return SliceChunk(offset, _rest("a chunk", data, frames.CHUNK.size, MAX_CHUNK_BYTES))


def encode_probe_data(message: ProbeData, wire: WireType) -> bytes:
    flags = frames.LAST if message.last else 0
    _expect_bytes("a probe", message.data, MAX_CHUNK_BYTES)
    return frames.HEAD.pack(PROTOCOL_VERSION, FrameType.PROBE_DATA, flags) + message.data


def decode_probe_data(data: Buffer, flags: int, n_embd: int, limits: Limits) -> ProbeData:
    return ProbeData(bool(flags & frames.LAST), _rest("a probe", data, frames.HEAD.size, MAX_CHUNK_BYTES))


def encode_probe_echo(message: ProbeEcho, wire: WireType) -> bytes:
    return frames.PROBE_ECHO.pack(PROTOCOL_VERSION, FrameType.PROBE_ECHO, 0, message.received)


def _expect_bytes(what: str, data: bytes, most: int) -> None:
    if len(data) > most:
        raise ProtocolError(f"{what} of {len(data)} bytes, at most {most} are allowed", code="frame-length")


def _rest(what: str, data: Buffer, start: int, most: int) -> bytes:
    body = bytes(memoryview(data)[start:])
    _expect_bytes(what, body, most)
    return body
