"""The layout of frames: their types, flags and fixed heads. Field by field: docs/protocol.md."""

from __future__ import annotations

import struct
from enum import IntEnum

from engine.protocol.messages import WireType


class FrameType(IntEnum):
    """Second byte of every frame."""

    HELLO = 1
    WELCOME = 2
    CONFIGURE = 3
    PREFILL = 4
    PREFILL_DONE = 5
    VERIFY = 6
    PREDICTED = 7
    CANCEL = 8
    TRIM = 9
    STOP = 10
    PING = 11
    PONG = 12
    STATUS = 13
    ERROR = 14
    DESCRIBE = 15
    NODE_INFO = 16
    MEASURE = 17
    MEASURED = 18
    PROBE_PEER = 19
    PEER_PROBED = 20
    ASSIGN = 21
    PROGRESS = 22
    SLICE_WANTED = 23
    CHUNK = 24
    ASSIGNED = 25
    PROBE_DATA = 26
    PROBE_ECHO = 27
    DRAFTED = 28


WIRE_MASK = 0b11  # flags: how activations are written; 0: there are none
WIDENED = 1 << 2  # f32 although the lane agreed on less: a value did not fit
FINAL = 1 << 3  # last chunk of the prompt
STALE = 1 << 4
HAS_DRAFT = 1 << 5
LAST_ONLY = 1 << 6  # end of a prompt: only the last row is predicted
DRAFT_LATER = 1 << 7  # the reply is not to wait for the draft
LAST = 1 << 0  # of a round of probe data: to be answered

ALLOWED_FLAGS: dict[int, int] = {
    FrameType.PREFILL: WIRE_MASK | WIDENED | FINAL,
    FrameType.VERIFY: WIRE_MASK | WIDENED | STALE | LAST_ONLY | DRAFT_LATER,
    FrameType.PREDICTED: STALE | HAS_DRAFT,
    FrameType.PROBE_DATA: LAST,
}
"""All other types have none."""

WIRE_NUMBERS = {WireType.F32: 1, WireType.F16: 2, WireType.Q8: 3}
WIRE_TYPES = {number: wire for wire, number in WIRE_NUMBERS.items()}

HEAD = struct.Struct("<BBH")
PREFILL = struct.Struct("<BBHIIIiI")  # session, start, rows, next token, stage times
PREFILL_DONE = struct.Struct("<BBHIII")  # session, end, stage times
VERIFY = struct.Struct("<BBHIIIIIHH")  # session, window, epoch, start, rows, draft budget, stage times
PREDICTED = struct.Struct("<BBHIIIIIHH")  # session, window, epoch, start, predictions, draft tokens, times
DRAFTED = struct.Struct("<BBHIIII")  # session, window, epoch, draft tokens
DRAFT = struct.Struct("<IiI")  # position, after token, head microseconds
STAGE_TIME = struct.Struct("<IIII")  # stage, queue us, compute us, kv tokens
CANCEL = struct.Struct("<BBHII")  # session, epoch
TRIM = struct.Struct("<BBHII")  # session, keep
STOP = struct.Struct("<BBHI")  # session
PING = struct.Struct("<BBHQ")  # sent us
PONG = struct.Struct("<BBHQII")  # sent us, busy ms, queued
MEASURE = struct.Struct("<BBHI")  # threads
CHUNK = struct.Struct("<BBHQ")  # offset
PROBE_ECHO = struct.Struct("<BBHQ")  # received bytes
