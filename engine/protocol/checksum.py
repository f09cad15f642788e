"""A checksum at the end of every frame on a socket.

TCP's own sum is too weak for activations, and proxies on the way have been known to change bytes: a flipped
bit there would not fail, it would give another text. The last four bytes are the CRC-32 of all before them,
little endian. About 1 µs for each KiB.
"""

from __future__ import annotations

import struct
import zlib

from engine.errors import ProtocolError
from engine.protocol.messages import PROTOCOL_VERSION

_TRAILER = struct.Struct("<I")
CHECKSUM_BYTES = _TRAILER.size


def seal(frame: bytes) -> bytes:
    """The frame as it goes to the socket."""
    return frame + _TRAILER.pack(zlib.crc32(frame))


def unseal(data: bytes | bytearray) -> bytes | bytearray:
    """The frame in what a socket gave; ProtocolError `checksum` if it was changed on the way.

    Bytes of another protocol version are passed on as they are: who reads them says so more clearly.
    """
    if not data or data[0] != PROTOCOL_VERSION:
        return data
    end = len(data) - CHECKSUM_BYTES
    if end < 0 or _TRAILER.unpack_from(data, end)[0] != zlib.crc32(memoryview(data)[:end]):
        raise ProtocolError("a frame was damaged on the way", hint="look at the network", code="checksum")
    if isinstance(data, bytearray):
        del data[end:]
        return data
    return data[:end]
