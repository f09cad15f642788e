"""Frames: one message each, little endian, a fixed head per type and then arrays whose lengths it states.

The head begins with version (u8), type (u8) and flags (u16). Field by field: docs/protocol.md. `decode`
checks the whole length against the head before it allocates anything, and refuses what it does not know with
a `ProtocolError` whose `code` is one of: version, frame-type, frame-flags, frame-length, rows, position,
fields, json.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from engine.errors import ProtocolError
from engine.protocol import frames, jsonbody, lane_codec, node_codec
from engine.protocol import node_messages as node
from engine.protocol.frame_checks import Buffer, expect_length, name_of
from engine.protocol.frames import FrameType
from engine.protocol.limits import Limits
from engine.protocol.messages import (
    PROTOCOL_VERSION,
    CancelEpoch,
    ConfigureGeneration,
    DraftedTokens,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    PredictedTokens,
    Prefill,
    PrefillDone,
    StageStatus,
    Stop,
    TrimSession,
    VerifyWindow,
    Welcome,
    WireType,
)


def encode(message: Message, wire: WireType = WireType.F32) -> bytes:
    """The frame of a message. Activations `(rows, n_embd)` are written as `wire`, or as f32 if it cannot
    hold them (`is_widened` tells). ProtocolError `fields` or `rows` if a value has no place in the frame.
    """
    try:
        return _ENCODERS[type(message)](message, wire)
    except struct.error as error:
        raise ProtocolError(f"{type(message).__name__} cannot be written: {error}", code="fields") from error


def decode(data: Buffer, *, n_embd: int, limits: Limits) -> Message:
    """The message of a frame; its activations are float32 `(rows, n_embd)`, C-contiguous and not to be
    written to (for f32 a view of `data`). ProtocolError if it is not exactly one well-formed frame within
    `limits`.
    """
    if len(data) < frames.HEAD.size:
        raise ProtocolError(f"a frame of {len(data)} bytes has no head", code="frame-length")
    version, kind, flags = frames.HEAD.unpack_from(data)
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {version}, this side {PROTOCOL_VERSION}",
            hint="run the same release on all machines",
            code="version",
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ProtocolError(f"unknown frame type {kind}", code="frame-type")
    if flags & ~frames.ALLOWED_FLAGS.get(kind, 0):
        raise ProtocolError(
            f"flags {flags:#x} have no meaning in a {name_of(kind)} frame", code="frame-flags"
        )
    return decoder(data, flags, n_embd, limits)


def is_heartbeat(frame: Buffer) -> bool:
    """True for an encoded Ping or Pong."""
    return len(frame) > 1 and frame[1] in (FrameType.PING, FrameType.PONG)


def is_widened(frame: bytes) -> bool:
    """True for an encoded frame whose activations had to be sent as f32."""
    return bool(frame[2] & frames.WIDENED) and frame[1] in (FrameType.PREFILL, FrameType.VERIFY)


# --- small frames -------------------------------------------------------------------------------------------


def _encode_cancel(message: CancelEpoch, wire: WireType) -> bytes:
    return frames.CANCEL.pack(PROTOCOL_VERSION, FrameType.CANCEL, 0, message.session, message.epoch)


def _encode_trim(message: TrimSession, wire: WireType) -> bytes:
    return frames.TRIM.pack(PROTOCOL_VERSION, FrameType.TRIM, 0, message.session, message.keep)


def _encode_stop(message: Stop, wire: WireType) -> bytes:
    return frames.STOP.pack(PROTOCOL_VERSION, FrameType.STOP, 0, message.session)


def _encode_ping(message: Ping, wire: WireType) -> bytes:
    return frames.PING.pack(PROTOCOL_VERSION, FrameType.PING, 0, message.sent_us)


def _encode_pong(message: Pong, wire: WireType) -> bytes:
    return frames.PONG.pack(
        PROTOCOL_VERSION, FrameType.PONG, 0, message.sent_us, message.busy_ms, message.queued
    )


def _fixed(
    layout: struct.Struct, make: Callable[..., Message]
) -> Callable[[Buffer, int, int, Limits], Message]:
    """Decoder of a frame that is its head and nothing else."""

    def decode_fixed(data: Buffer, flags: int, n_embd: int, limits: Limits) -> Message:
        expect_length(data, layout.size)
        return make(*layout.unpack(data)[3:])

    return decode_fixed


def _json_encoder(kind: FrameType) -> Callable[[Message, WireType], bytes]:
    def encode_json(message: Message, wire: WireType) -> bytes:
        return frames.HEAD.pack(PROTOCOL_VERSION, kind, 0) + jsonbody.dump(message)

    return encode_json


def _json_decoder(cls: type[Message]) -> Callable[[Buffer, int, int, Limits], Message]:
    def decode_json(data: Buffer, flags: int, n_embd: int, limits: Limits) -> Message:
        return jsonbody.load(cls, memoryview(data)[frames.HEAD.size :])

    return decode_json


# --- tables -------------------------------------------------------------------------------------------------


_JSON: dict[FrameType, type[Message]] = {
    FrameType.HELLO: Hello,
    FrameType.WELCOME: Welcome,
    FrameType.CONFIGURE: ConfigureGeneration,
    FrameType.STATUS: StageStatus,
    FrameType.ERROR: ErrorMessage,
    FrameType.DESCRIBE: node.Describe,
    FrameType.NODE_INFO: node.NodeInfo,
    FrameType.MEASURED: node.Measured,
    FrameType.PROBE_PEER: node.ProbePeer,
    FrameType.PEER_PROBED: node.PeerProbed,
    FrameType.ASSIGN: node.Assign,
    FrameType.PROGRESS: node.AssignProgress,
    FrameType.SLICE_WANTED: node.SliceWanted,
    FrameType.ASSIGNED: node.Assigned,
}

_ENCODERS: dict[type[Message], Callable[..., bytes]] = {
    **{cls: _json_encoder(kind) for kind, cls in _JSON.items()},
    Prefill: lane_codec.encode_prefill,
    PrefillDone: lane_codec.encode_prefill_done,
    VerifyWindow: lane_codec.encode_verify,
    PredictedTokens: lane_codec.encode_predicted,
    DraftedTokens: lane_codec.encode_drafted,
    CancelEpoch: _encode_cancel,
    TrimSession: _encode_trim,
    Stop: _encode_stop,
    Ping: _encode_ping,
    Pong: _encode_pong,
    node.Measure: node_codec.encode_measure,
    node.SliceChunk: node_codec.encode_chunk,
    node.ProbeData: node_codec.encode_probe_data,
    node.ProbeEcho: node_codec.encode_probe_echo,
}

_DECODERS: dict[int, Callable[[Buffer, int, int, Limits], Message]] = {
    **{kind: _json_decoder(cls) for kind, cls in _JSON.items()},
    FrameType.PREFILL: lane_codec.decode_prefill,
    FrameType.PREFILL_DONE: lane_codec.decode_prefill_done,
    FrameType.VERIFY: lane_codec.decode_verify,
    FrameType.PREDICTED: lane_codec.decode_predicted,
    FrameType.DRAFTED: lane_codec.decode_drafted,
    FrameType.CANCEL: _fixed(frames.CANCEL, CancelEpoch),
    FrameType.TRIM: _fixed(frames.TRIM, TrimSession),
    FrameType.STOP: _fixed(frames.STOP, Stop),
    FrameType.PING: _fixed(frames.PING, Ping),
    FrameType.PONG: _fixed(frames.PONG, Pong),
    FrameType.MEASURE: node_codec.decode_measure,
    FrameType.CHUNK: node_codec.decode_chunk,
    FrameType.PROBE_DATA: node_codec.decode_probe_data,
    FrameType.PROBE_ECHO: _fixed(frames.PROBE_ECHO, node.ProbeEcho),
}
