"""Reading tables of a TOML file: every fault names the file, the key, and what would be allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.config.kinds import Kind, Text
from engine.config.settings import Described, nearest, nearest_setting
from engine.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The whole file; raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def table_of(value: Any, name: str, path: Path) -> Mapping[str, Any]:
    """The value of a key that has to be a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} in {path} must be a table, not {value!r}")
    return value


def known_keys(
    table: Mapping[str, Any], known: Iterable[str] | Mapping[str, Described], name: str, path: Path
) -> None:
    """Refuse a key that is not known. Of settings, the nearest one is told with its range."""
    for key in table:
        if key not in known:
            place = f"[{name}]" if name else "the file"
            hint = nearest_setting(key, known) if isinstance(known, Mapping) else nearest(key, known)
            raise ConfigError(f"unknown key {key!r} in {place}, {path}", hint=hint)


def values_of(
    table: Mapping[str, Any], known: Mapping[str, Described], name: str, path: Path
) -> dict[str, Any]:
    """Every value of a table, checked; file names become absolute."""
    known_keys(table, known, name, path)
    return {key: checked(known[key].kind, value, f"{name}.{key}", path) for key, value in table.items()}


def checked(kind: Kind, value: Any, key: str, path: Path) -> Any:
    """A value as a plan holds it."""
    try:
        return absolute(kind, kind.check(value), path.absolute().parent)
    except ValueError as error:
        raise ConfigError(f"{key} in {path} {error}") from error


def absolute(kind: Kind, value: Any, base: Path) -> Any:
    """File names mean what they meant where they were written, whatever reads the plan later."""
    if isinstance(kind, Text) and kind.is_file and value:
        return str(base / Path(value).expanduser())
    return value
