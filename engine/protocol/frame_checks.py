"""Checks that decoders share: of lengths, counts and positions. All of them raise ProtocolError."""

from __future__ import annotations

import struct
from typing import NoReturn

from engine.errors import ProtocolError
from engine.protocol.frames import FrameType

Buffer = bytes | bytearray


def name_of(kind: int) -> str:
    return FrameType(kind).name.lower().replace("_", "-")


def out_of_bounds(what: str, value: int, most: int) -> NoReturn:
    raise ProtocolError(f"{what} is {value}, at most {most} are allowed", code="fields")


def expect_head(data: Buffer, layout: struct.Struct) -> None:
    if len(data) < layout.size:
        raise ProtocolError(
            f"a {name_of(data[1])} frame of {len(data)} bytes is shorter than its head of {layout.size}",
            code="frame-length",
        )


def expect_length(data: Buffer, size: int) -> None:
    if len(data) != size:
        raise ProtocolError(
            f"a {name_of(data[1])} frame of {len(data)} bytes should have {size}", code="frame-length"
        )


def expect_rows(what: str, rows: int, most: int) -> None:
    if not 1 <= rows <= most:
        raise ProtocolError(f"{what} of {rows} rows, 1 to {most} were agreed", code="rows")


def expect_positions(start: int, rows: int, context: int) -> None:
    if start + rows > context:
        raise ProtocolError(
            f"positions {start} to {start + rows} do not fit in a context of {context}", code="position"
        )


def read_token(token: int) -> int:
    if token < 0:
        raise ProtocolError(f"token {token} is negative", code="fields")
    return token


def read_tokens(data: Buffer, offset: int, count: int) -> tuple[int, ...]:
    tokens = struct.unpack_from(f"<{count}i", data, offset)
    if tokens and min(tokens) < 0:
        read_token(min(tokens))
    return tokens
