"""The rare messages travel as JSON inside the binary framing: strict conversion to and from dataclasses.

Strict means: every key known, every value of the declared type, nothing missing that has no default.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import orjson

from engine.errors import ProtocolError

T = TypeVar("T")
Convert = Callable[[str, Any], Any]

MAX_FIELD_ITEMS = 100_000
"""Longest list in a body; a logit bias for every token of a large vocabulary would still fit a frame."""


def dump(message: object) -> bytes:
    """JSON of a message dataclass."""
    try:
        return orjson.dumps(message)
    except TypeError as error:
        raise ProtocolError(f"{type(message).__name__} cannot be written: {error}", code="fields") from error


def load(cls: type[T], body: bytes | bytearray | memoryview) -> T:
    """Rebuild a message; ProtocolError `json` or `fields` names the field that is wrong."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{cls.__name__} is not valid JSON: {error}", code="json") from None
    message: T = _converter(cast(Hashable, cls))(cls.__name__, value)
    return message


def _wrong(path: str, expected: str, value: Any) -> ProtocolError:
    return ProtocolError(f"{path} must be {expected}, not {type(value).__name__}", code="fields")


@cache
def _converter(kind: Hashable) -> Convert:
    """The checking conversion for one declared type; made once per type."""
    if get_origin(kind) is tuple:
        return _tuple_converter(get_args(kind))
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_converter(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enum_converter(kind)
    if kind is float:
        return _number
    if kind in (int, str, bool):
        return _scalar_converter(kind)
    raise TypeError(f"no JSON form for {kind!r}")


def _number(path: str, value: Any) -> float:
    if type(value) in (int, float):
        return float(value)
    raise _wrong(path, "a number", value)


def _scalar_converter(kind: type) -> Convert:
    def convert(path: str, value: Any) -> Any:
        if type(value) is kind:  # exact: True is no int here
            return value
        raise _wrong(path, f"a value of type {kind.__name__}", value)

    return convert


def _enum_converter(kind: type[StrEnum]) -> Convert:
    allowed = ", ".join(kind)

    def convert(path: str, value: Any) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            shown = value if isinstance(value, str) and len(value) < 40 else type(value).__name__
            raise ProtocolError(f"{path} is {shown!r}, this side knows {allowed}", code="fields") from None

    return convert


def _tuple_converter(arguments: tuple[Any, ...]) -> Convert:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _converter(arguments[0])

        def convert_all(path: str, value: Any) -> tuple[Any, ...]:
            if type(value) is not list or len(value) > MAX_FIELD_ITEMS:
                raise _wrong(path, f"a list of at most {MAX_FIELD_ITEMS}", value)
            return tuple([item(path, element) for element in value])

        return convert_all
    items = [_converter(argument) for argument in arguments]

    def convert_each(path: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            raise _wrong(path, f"a list of {len(items)}", value)
        return tuple([item(path, element) for item, element in zip(items, value, strict=True)])

    return convert_each


def _dataclass_converter(cls: type) -> Convert:
    hints = get_type_hints(cls)
    converters = {item.name: _converter(hints[item.name]) for item in fields(cls)}
    required = {
        item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING
    }

    def convert(path: str, value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(path, "an object", value)
        unknown = value.keys() - converters.keys()
        if unknown:
            raise ProtocolError(f"{path} has unknown keys, {len(unknown)} of them", code="fields")
        missing = required - value.keys()
        if missing:
            raise ProtocolError(f"{path} lacks {', '.join(sorted(missing))}", code="fields")
        return cls(**{name: converters[name](f"{path}.{name}", item) for name, item in value.items()})

    return convert
