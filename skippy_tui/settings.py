"""Changing settings while the app runs: which can be, and what each change takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.config.kinds import Choice, Number, Switch, Whole
from engine.config.layers import layer_of_flags
from engine.config.plain import from_plain
from engine.config.plan import RunPlan
from engine.config.resolve import LIVE_TABLES, with_settings
from engine.config.settings import SETTINGS, Setting, nearest, value_of
from engine.errors import UsageError

# Places of layers are told by these; saying one of them takes the others back.
_PLACES = ("stages", "split", "remote")

# What is changed most often, in the order of the settings screen.
LIVE = (
    "strategy",
    "window_policy",
    "window_min",
    "window_max",
    "pipeline_depth",
    "draft_max",
    "temperature",
    "seed",
    "max_tokens",
    "emulate_rtt_ms",
)

# How far one press of an arrow key goes.
_STEPS: dict[str, float] = {
    "temperature": 0.1,
    "top_p": 0.05,
    "min_p": 0.01,
    "repeat_penalty": 0.05,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "emulate_rtt_ms": 5,
    "emulate_jitter_ms": 1,
    "emulate_mbps": 10,
    "max_tokens": 64,
    "context": 512,
}


def find_setting(name: str) -> Setting:
    """The setting of a name, `-` and `_` alike. Raises UsageError naming the nearest."""
    setting = SETTINGS.get(name.strip().replace("-", "_").lstrip("_"))
    if setting is None:
        raise UsageError(f"there is no setting {name!r}", hint=nearest(name, SETTINGS))
    return setting


def needs_new_engine(setting: Setting) -> bool:
    """Whether only a new engine can take a change of this setting on."""
    return setting.table not in LIVE_TABLES and not setting.path.startswith("topology.emulation.")


def change(plan: RunPlan, name: str, value: Any) -> RunPlan:
    """The plan with one setting changed; the value may be a text. Raises UsageError or ConfigError."""
    setting = find_setting(name)
    if setting.table in LIVE_TABLES:
        return with_settings(plan, {setting.name: value})
    plain = asdict(plan)
    if setting.name in _PLACES:
        plain["topology"] |= {"split": (), "remote": ()}
    _put(plain, setting.path.split("."), layer_of_flags({setting.name: value}).values[setting.name])
    topology = plain["topology"]
    if setting.name == "split":
        topology["stages"] = len(topology["split"]) + 1
    return from_plain(RunPlan, plain, "plan")


def stepped(plan: RunPlan, name: str, direction: int) -> RunPlan:
    """The plan with a setting one step up or down: the next word, a switch turned, a number moved."""
    setting = find_setting(name)
    value, kind = value_of(plan, setting), setting.kind
    new: Any
    if isinstance(kind, Choice):
        words = list(kind.words)
        new = words[(words.index(str(getattr(value, "value", value))) + direction) % len(words)]
    elif isinstance(kind, Switch):
        new = not value
    elif isinstance(kind, Whole | Number):
        moved = value + direction * _STEPS.get(name, 1)
        top = float("inf") if kind.maximum is None else kind.maximum
        new = min(max(round(moved, 6), kind.minimum), top)
        new = int(new) if isinstance(kind, Whole) else new
    else:
        return plan
    return change(plan, name, new)


def shown_value(plan: RunPlan, setting: Setting) -> str:
    """The value as it is shown, and as it can be typed again."""
    value = value_of(plan, setting)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(getattr(item, "url", str(item)) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(getattr(value, "value", value))


def choices_of(name: str) -> tuple[str, ...]:
    """The words that a setting may hold; empty if it is no choice."""
    kind = find_setting(name).kind
    if isinstance(kind, Switch):
        return ("on", "off")
    return tuple(str(getattr(word, "value", word)) for word in kind.words) if isinstance(kind, Choice) else ()


def _put(plain: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        plain = plain[part]
    plain[path[-1]] = value
