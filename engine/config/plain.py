"""Frozen dataclasses to plain dictionaries and back, checked field by field.

Used where a plan or a request crosses a process border. Reading is strict: a wrong type or an unknown field
is a `UsageError` that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from engine.config.plan import RunPlan
from engine.config.settings import nearest
from engine.errors import UsageError

T = TypeVar("T")

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def plan_to_dict(plan: RunPlan) -> dict[str, Any]:
    """JSON-ready form of a plan. It holds the tokens of remote stages: not for logs."""
    return asdict(plan)


def plan_from_dict(data: Mapping[str, Any]) -> RunPlan:
    """The plan that `plan_to_dict` was given; raises UsageError."""
    return from_plain(RunPlan, data, "plan")


def from_plain(cls: type[T], data: Any, name: str) -> T:
    """Build `cls` from a dictionary; `name` is what errors call the dictionary."""
    if not isinstance(data, Mapping):
        raise UsageError(f"{name} must be an object, not {_shown(data)}")
    hints = get_type_hints(cls)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise UsageError(f"{name} has no field {key!r}; {nearest(str(key), known)}")
    for key, item in known.items():
        if key not in data and item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f"{name} lacks the field {key!r}")
    return cls(**{key: _read(hints[key], value, f"{name}.{key}") for key, value in data.items()})


def _read(hint: Any, value: Any, name: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        return _read(next(option for option in options if option is not type(None)), value, name)
    if origin is tuple:
        return _read_tuple(get_args(hint), value, name)
    if origin is dict or hint is dict:
        if isinstance(value, Mapping):
            items = get_args(hint)[1] if get_args(hint) else Any
            if not is_dataclass(items):
                return dict(value)
            return {key: _read(items, item, f"{name}.{key}") for key, item in value.items()}
        raise UsageError(f"{name} must be an object, not {_shown(value)}")
    if is_dataclass(hint):
        return from_plain(hint, value, name)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        if value in [member.value for member in hint]:
            return hint(value)
        raise UsageError(f"{name} must be one of {', '.join(m.value for m in hint)}, not {_shown(value)}")
    return _read_scalar(hint, value, name)


def _read_tuple(items: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} must be a list, not {_shown(value)}")
    if items[-1] is Ellipsis:
        return tuple(_read(items[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if len(value) != len(items):
        raise UsageError(f"{name} must hold {len(items)} values, not {len(value)}")
    return tuple(
        _read(hint, item, f"{name}[{i}]") for i, (hint, item) in enumerate(zip(items, value, strict=True))
    )


def _read_scalar(hint: Any, value: Any, name: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UsageError(f"{name} must be {_NAMES.get(hint, hint.__name__)}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
