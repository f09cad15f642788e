"""Layers of settings, lowest first: what a TOML file and the flags of a call give.

A layer only holds what was said in it. `engine.config.resolve` lays one over the other; a further source (the
package of a model) is one more layer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config.kinds import Address, Items, Text
from engine.config.settings import SETTINGS, TABLES, Setting, nearest, settings_of
from engine.config.ui import UI_SETTINGS, UiPlan
from engine.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Layer:
    """Values by setting name, and where each was said, in words."""

    values: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFile:
    """A parsed `skippy.toml`: the layer of `[defaults]`, one for each `[models.NAME]`, and `[ui]`."""

    path: Path
    defaults: Layer
    models: Mapping[str, Layer]
    ui: UiPlan


def layer_of_flags(flags: Mapping[str, Any]) -> Layer:
    """The layer of a call. Values are texts or already typed; None is a flag that was not given."""
    layer = Layer()
    for name, value in flags.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise UsageError(f"there is no setting {name!r}", hint=nearest(name, SETTINGS))
        if value is None:
            continue
        try:
            layer.values[name] = _absolute(setting, _of_flag(setting, value), Path.cwd())
        except ValueError as error:
            raise UsageError(f"{setting.flag} {error}") from error
        layer.where[name] = setting.flag
    return layer


def _of_flag(setting: Setting, value: Any) -> Any:
    kind = setting.kind
    if isinstance(value, str):
        return kind.parse(value)
    if isinstance(kind, Items) and isinstance(value, list):  # a flag that was given several times
        return kind.check([kind.item.parse(item) if isinstance(item, str) else item for item in value])
    return kind.check(value)


def _absolute(setting: Setting, value: Any, base: Path) -> Any:
    """File names mean what they meant where they were written, whatever reads the plan later."""
    if setting.name == "remote":
        return tuple({key: _absolute_text(key, text, base) for key, text in item.items()} for item in value)
    is_file = isinstance(setting.kind, Text) and setting.kind.is_file
    if not is_file or not value or (setting.name == "model" and not _looks_like_file(value)):
        return value
    return str(base / Path(value).expanduser())


def _absolute_text(key: str, value: Any, base: Path) -> Any:
    return str(base / Path(value).expanduser()) if key == "token_file" else value


def _looks_like_file(name: str) -> bool:
    return name.endswith(".gguf") or "/" in name or "\\" in name or name.startswith("~")


def read_config_file(path: Path) -> ConfigFile:
    """Read and check a whole `skippy.toml`; raises ConfigError naming the file and the key."""
    data = _read_toml(path)
    _known_keys(data, ["defaults", "models", "ui"], "", path)
    models = _table(data.get("models", {}), "models", path)
    return ConfigFile(
        path,
        _layer_of_table(_table(data.get("defaults", {}), "defaults", path), "defaults", path),
        {
            name: _layer_of_table(
                _table(table, f"models.{name}", path), f"models.{name}", path, is_model=True
            )
            for name, table in models.items()
        },
        _ui_of_table(_table(data.get("ui", {}), "ui", path), path),
    )


def read_topology_file(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The stages of a `--topology` file: `[[stages]]` with `url`, `token_file` and `standby`, in order."""
    data = _read_toml(path)
    _known_keys(data, ["stages"], "", path)
    try:
        stages = Items(Address()).check(data.get("stages", []))
    except ValueError as error:
        raise ConfigError(f"stages in {path} {error}") from error
    if not stages:
        raise ConfigError(f"{path} names no stage", hint="write one [[stages]] with a url for each")
    return tuple(_absolute(SETTINGS["remote"], stages, path.absolute().parent))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _layer_of_table(table: Mapping[str, Any], name: str, path: Path, *, is_model: bool = False) -> Layer:
    """The layer of `[defaults]` or `[models.NAME]`: there the key `model` is called `path`."""
    layer = Layer()
    subtables = [key for key in TABLES if key]
    _known_keys(table, ["path" if is_model else "model", *subtables], name, path)
    top = "path" if is_model else "model"
    if top in table:
        _take(layer, SETTINGS["model"], table[top], f"{name}.{top}", path)
    for subtable in subtables:
        values = _table(table.get(subtable, {}), f"{name}.{subtable}", path)
        known = {setting.name: setting for setting in settings_of(subtable)}
        _known_keys(values, known, f"{name}.{subtable}", path)
        for key, value in values.items():
            _take(layer, known[key], value, f"{name}.{subtable}.{key}", path)
    return layer


def _ui_of_table(table: Mapping[str, Any], path: Path) -> UiPlan:
    _known_keys(table, UI_SETTINGS, "ui", path)
    values = {}
    for key, value in table.items():
        try:
            values[key] = UI_SETTINGS[key].kind.check(value)
        except ValueError as error:
            raise ConfigError(f"ui.{key} in {path} {error}") from error
    return UiPlan(**values)


def _take(layer: Layer, setting: Setting, value: Any, key: str, path: Path) -> None:
    try:
        layer.values[setting.name] = _absolute(setting, setting.kind.check(value), path.absolute().parent)
    except ValueError as error:
        raise ConfigError(f"{key} in {path} {error}") from error
    layer.where[setting.name] = f"{key} in {path}"


def _table(value: Any, name: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} in {path} must be a table, not {value!r}")
    return value


def _known_keys(table: Mapping[str, Any], known: Any, name: str, path: Path) -> None:
    for key in table:
        if key not in known:
            place = f"[{name}]" if name else "the file"
            raise ConfigError(f"unknown key {key!r} in {place}, {path}", hint=nearest(key, known))
