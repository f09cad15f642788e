"""The table `[ui]` of `skippy.toml`: how the app looks when it starts. No engine ever reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from engine.config.kinds import Kind, Switch, Text


@dataclass(frozen=True, slots=True)
class UiPlan:
    """What `[ui]` says, with a default for the rest."""

    theme: str = ""
    tokens: bool = False
    panels: bool = True


@dataclass(frozen=True, slots=True)
class UiSetting:
    """One key of `[ui]`."""

    kind: Kind
    help: str


UI_SETTINGS: Mapping[str, UiSetting] = {
    "theme": UiSetting(Text("NAME"), "theme to begin with; empty: the one used last"),
    "tokens": UiSetting(Switch(), "show answers as tokens by their origin, not as text"),
    "panels": UiSetting(Switch(), "show the panels where there is room for them"),
}

UI_DEFAULTS = asdict(UiPlan())
