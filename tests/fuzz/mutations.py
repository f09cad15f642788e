"""Ways to spoil a valid input, by a fixed seed."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from gguf import GGUFValueType

from engine.model.header import SCALAR_FORMATS

EVIL = (2**63, 2**64 - 1, 2**63 - 1, 2**40, 2**32, 2**32 - 1)


def spoil(data: bytes, rng: random.Random) -> bytes:
    """One small change anywhere: bits, bytes, a cut, something in between or at the end."""
    changed = bytearray(data)
    at = rng.randrange(len(changed))
    match rng.randrange(5):
        case 0:
            changed[at] ^= 1 << rng.randrange(8)
        case 1:
            del changed[at:]
        case 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 40))
        case 3:
            size = min(rng.choice((1, 2, 4, 8)), len(changed) - at)
            changed[at : at + size] = rng.choice((b"\xff" * size, bytes(size), rng.randbytes(size)))
        case _:
            changed += rng.randbytes(rng.randrange(1, 40))
    return bytes(changed)


@dataclass(frozen=True)
class Field:
    """A number in a GGUF header that decides how the rest is read."""

    kind: str  # count | length | type | dimension | offset
    offset: int
    layout: str


def structure(data: bytes) -> list[Field]:
    """Every such number of a valid header."""
    fields = [Field("count", 8, "<Q"), Field("count", 16, "<Q")]
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24

    def text(at: int) -> int:
        fields.append(Field("length", at, "<Q"))
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])

    def value(kind: int, at: int) -> int:
        if kind == GGUFValueType.STRING:
            return text(at)
        if kind != GGUFValueType.ARRAY:
            return at + struct.calcsize("<" + SCALAR_FORMATS[GGUFValueType(kind)])
        item, count = struct.unpack_from("<IQ", data, at)
        fields.extend((Field("type", at, "<I"), Field("count", at + 4, "<Q")))
        at += 12
        for _ in range(count):
            at = value(item, at)
        return at

    for _ in range(n_keys):
        at = text(at)
        fields.append(Field("type", at, "<I"))
        at = value(struct.unpack_from("<I", data, at)[0], at + 4)
    for _ in range(n_tensors):
        at = text(at)
        fields.append(Field("count", at, "<I"))
        (n_dims,) = struct.unpack_from("<I", data, at)
        at += 4
        for _ in range(n_dims):
            fields.append(Field("dimension", at, "<Q"))
            at += 8
        fields.extend((Field("type", at, "<I"), Field("offset", at + 4, "<Q")))
        at += 12
    return fields


def spoil_field(data: bytes, field: Field, rng: random.Random) -> bytes:
    """Write a number that cannot be right."""
    evil = 2**31 + rng.randrange(2**31) if field.layout == "<I" else rng.choice(EVIL)
    if field.kind == "offset" and rng.random() < 0.3:
        evil = len(data) + rng.randrange(2**20)  # past the end, or not aligned
    changed = bytearray(data)
    struct.pack_into(field.layout, changed, field.offset, evil)
    return bytes(changed)
