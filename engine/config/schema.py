"""The JSON Schema of `skippy.toml`, made from the table of settings."""

from __future__ import annotations

from typing import Any

from engine.config.nodes import NODE_KEYS, NodeSettings
from engine.config.settings import SETTINGS, TABLES, Setting, settings_of
from engine.config.ui import UI_DEFAULTS, UI_SETTINGS


def config_schema() -> dict[str, Any]:
    """Every key, its default, range and meaning."""
    tables = {
        table: _object({setting.name: _entry(setting) for setting in settings_of(table)}, title)
        for table, title in TABLES.items()
        if table
    }
    model = SETTINGS["model"]
    path = {
        "type": "string",
        "description": "a GGUF file or the folder of a package, from the folder of this file",
    }
    properties = {
        "defaults": _object({"model": _entry(model), **tables}, "settings of every model"),
        "models": {
            "type": "object",
            "description": "models by name, for --model NAME",
            "additionalProperties": _object({"path": path, **tables}, "a model and its settings"),
        },
        "nodes": {
            "type": "array",
            "description": "machines that wait for layers",
            "items": {
                **_object({key: _node_entry(key) for key in NODE_KEYS}, "one machine"),
                "required": [key for key, entry in NODE_KEYS.items() if entry.required],
            },
        },
        "ui": _object(
            {
                key: {**setting.kind.schema(), "default": UI_DEFAULTS[key], "description": setting.help}
                for key, setting in UI_SETTINGS.items()
            },
            "how the app looks when it starts",
        ),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "skippy.toml",
        **_object(properties, "settings of skippy"),
    }


def _node_entry(key: str) -> dict[str, Any]:
    entry = NODE_KEYS[key]
    default = {} if entry.required else {"default": getattr(NodeSettings("", ""), key)}
    return {**entry.kind.schema(), **default, "description": entry.help}


def _object(properties: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


def _entry(setting: Setting) -> dict[str, Any]:
    return {**setting.kind.schema(), "default": setting.default, "description": setting.help}
