"""Layers of settings, lowest first: what the package of a model, a TOML file and the flags of a call give.

A layer only holds what was said in it. `engine.config.resolve` lays one over the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config.kinds import Address, Items
from engine.config.nodes import NODE_KEYS, NodeSettings
from engine.config.plan import RunPlan
from engine.config.settings import SETTINGS, TABLES, Setting, nearest_setting, settings_of
from engine.config.tables import absolute, checked, known_keys, read_toml, table_of, values_of
from engine.config.ui import UI_SETTINGS, UiPlan
from engine.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Layer:
    """Values by setting name, and where each was said, in words."""

    values: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConfigFile:
    """A parsed `skippy.toml`: layers of `[defaults]` and of each `[models.NAME]`, `[[nodes]]` and `[ui]`."""

    path: Path
    defaults: Layer
    models: Mapping[str, Layer]
    nodes: tuple[NodeSettings, ...]
    ui: UiPlan


def layer_of_flags(flags: Mapping[str, Any]) -> Layer:
    """The layer of a call. Values are texts or already typed; None is a flag that was not given."""
    layer = Layer()
    for name, value in flags.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise UsageError(f"there is no setting {name!r}", hint=nearest_setting(name, SETTINGS))
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
    if setting.name == "remote":
        return tuple({key: _absolute_text(key, text, base) for key, text in item.items()} for item in value)
    if setting.name in ("model", "draft_model") and not _looks_like_file(value):
        return value
    return absolute(setting.kind, value, base)


def _absolute_text(key: str, value: Any, base: Path) -> Any:
    return str(base / Path(value).expanduser()) if key == "token_file" else value


def _looks_like_file(name: str) -> bool:
    return name.endswith(".gguf") or "/" in name or "\\" in name or name.startswith("~")


def read_config_file(path: Path) -> ConfigFile:
    """Read and check a whole `skippy.toml`; raises ConfigError naming the file and the key."""
    data = read_toml(path)
    known_keys(data, ["defaults", "models", "nodes", "ui"], "", path)
    models = table_of(data.get("models", {}), "models", path)
    return ConfigFile(
        path,
        _layer_of_table(table_of(data.get("defaults", {}), "defaults", path), "defaults", path),
        {
            name: _layer_of_table(
                table_of(table, f"models.{name}", path), f"models.{name}", path, is_model=True
            )
            for name, table in models.items()
        },
        _nodes_of(data.get("nodes", []), path),
        UiPlan(**values_of(table_of(data.get("ui", {}), "ui", path), UI_SETTINGS, "ui", path)),
    )


def read_nodes_file(path: Path) -> tuple[NodeSettings, ...]:
    """The `[[nodes]]` of a file that holds nothing else. Tokens are not read yet. Raises ConfigError."""
    data = read_toml(path)
    known_keys(data, ["nodes"], "", path)
    nodes = _nodes_of(data.get("nodes", []), path)
    if not nodes:
        raise ConfigError(f"{path} names no node", hint="write one [[nodes]] with name and url for each")
    return nodes


def read_topology_file(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The stages of a `--topology` file: `[[stages]]` with `url`, `token_file` and `standby`, in order."""
    data = read_toml(path)
    known_keys(data, ["stages"], "", path)
    stages = checked(Items(Address()), data.get("stages", []), "stages", path)
    if not stages:
        raise ConfigError(f"{path} names no stage", hint="write one [[stages]] with a url for each")
    return tuple(_absolute(SETTINGS["remote"], stages, path.absolute().parent))


def _nodes_of(value: Any, path: Path) -> tuple[NodeSettings, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"nodes in {path} must be written as [[nodes]], not {value!r}")
    nodes: dict[str, NodeSettings] = {}
    for index, item in enumerate(value):
        name = f"nodes[{index}]"
        values = values_of(table_of(item, name, path), NODE_KEYS, name, path)
        for key, entry in NODE_KEYS.items():
            if entry.required and not values.get(key):
                raise ConfigError(f"{name} in {path} lacks {key}, {entry.help}")
        node = NodeSettings(**values)
        if node.name in nodes:
            raise ConfigError(f"{name}.name in {path} is {node.name!r}, as another node is called")
        nodes[node.name] = node
    return tuple(nodes.values())


def _layer_of_table(table: Mapping[str, Any], name: str, path: Path, *, is_model: bool = False) -> Layer:
    """The layer of `[defaults]` or `[models.NAME]`: there the key `model` is called `path`."""
    layer = Layer()
    subtables = [key for key in TABLES if key]
    top = "path" if is_model else "model"
    known_keys(table, [top, *subtables], name, path)
    if top in table:
        _take(layer, SETTINGS["model"], table[top], f"{name}.{top}", path)
        if is_model and table[top] != RunPlan().model:  # a path, however it looks
            layer.values["model"] = absolute(SETTINGS["model"].kind, table[top], path.absolute().parent)
    for subtable in subtables:
        values = table_of(table.get(subtable, {}), f"{name}.{subtable}", path)
        known = {setting.name: setting for setting in settings_of(subtable)}
        known_keys(values, known, f"{name}.{subtable}", path)
        for key, value in values.items():
            _take(layer, known[key], value, f"{name}.{subtable}.{key}", path)
    return layer


def _take(layer: Layer, setting: Setting, value: Any, key: str, path: Path) -> None:
    try:
        layer.values[setting.name] = _absolute(setting, setting.kind.check(value), path.absolute().parent)
    except ValueError as error:
        raise ConfigError(f"{key} in {path} {error}") from error
    layer.where[setting.name] = f"{key} in {path}"
