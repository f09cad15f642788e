"""Themes: TOML files that are shipped with the app, and those of the user's own config folder.

A file holds `name`, `dark`, a table `[colors]` and, if it wants, `[origins]`: the colours of tokens by where
they came from. A file that cannot be used is named with its reason and skipped.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from engine.errors import reason_of

DEFAULT_THEME = "harbour"
COLORS = (
    "primary",
    "secondary",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "success",
    "warning",
    "error",
)
ORIGINS = ("target", "mtp", "ngram", "draft", "correction", "free")

# What an origin looks like in a theme that does not say.
_ORIGIN_FALLBACK = {
    "target": "foreground",
    "mtp": "primary",
    "ngram": "success",
    "draft": "secondary",
    "correction": "error",
    "free": "accent",
}


class ThemeFault(Exception):
    """A theme file that cannot be used; the text says why."""


@dataclass(frozen=True)
class Themes:
    """Usable themes by name with their titles, and one line for each file that was skipped."""

    themes: Mapping[str, Theme]
    titles: Mapping[str, str]
    faults: tuple[str, ...] = ()


def shipped_themes() -> Path:
    """The folder of our own themes: beside the package in a checkout, inside it when installed."""
    inside = Path(__file__).parent / "themes"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "themes"


def load_themes(folders: Iterable[Path]) -> Themes:
    """Every theme of the folders; a later one replaces one of the same name."""
    themes: dict[str, Theme] = {}
    titles: dict[str, str] = {}
    faults: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            try:
                theme, title = read_theme(path)
            except ThemeFault as fault:
                faults.append(f"theme {path.name} skipped: {fault}")
            else:
                themes[theme.name], titles[theme.name] = theme, title
    return Themes(themes, titles, tuple(faults))


def read_theme(path: Path) -> tuple[Theme, str]:
    """One theme file: the theme and its title. Raises ThemeFault."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeFault(reason_of(error)) from error
    _known(data, ("name", "title", "dark", "colors", "origins"), "")
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not name.strip():
        raise ThemeFault("name must be a text")
    dark = data.get("dark", True)
    if not isinstance(dark, bool):
        raise ThemeFault("dark must be true or false")
    colors = _colors(data.get("colors"), "colors", COLORS)
    if "primary" not in colors:
        raise ThemeFault("colors.primary is missing")
    foreground = "#e0e0e0" if dark else "#202020"
    known = {"foreground": foreground, **colors}
    origins = _colors(data.get("origins", {}), "origins", ORIGINS)
    variables = {
        f"origin-{origin}": origins.get(origin, known.get(fallback, colors["primary"]))
        for origin, fallback in _ORIGIN_FALLBACK.items()
    }
    variables |= {
        "track": _shade(known, 0.10, dark),
        "edge": _shade(known, 0.24, dark),
        "window-even": colors["primary"],
        "window-odd": _shade({**known, "foreground": colors["primary"]}, 0.62, dark),
        "footer-key-foreground": known.get("accent", colors["primary"]),
        "block-cursor-text-style": "none",
        "input-selection-background": f"{colors['primary']} 35%",
    }
    theme = Theme(name=name, dark=dark, variables=variables, **_theme_colors(known))
    return theme, str(data.get("title", name))


def _theme_colors(known: Mapping[str, str]) -> dict[str, Any]:
    """The colours as arguments of a theme; those that a file leaves out are Textual's."""
    return dict(known)


def _shade(known: Mapping[str, str], share: float, dark: bool) -> str:
    """A colour between background and foreground."""
    background = Color.parse(known.get("background", "#121212" if dark else "#f4f4f4"))
    return background.blend(Color.parse(known["foreground"]), share).hex


def _known(data: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    unknown = sorted(set(data) - set(names))
    if unknown:
        raise ThemeFault(f"unknown key {where}{unknown[0]}")


def _colors(table: Any, where: str, names: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ThemeFault(f"[{where}] is missing or no table")
    _known(table, names, f"{where}.")
    for name, value in table.items():
        try:
            if not isinstance(value, str):
                raise ThemeFault(f"{where}.{name} must be a colour such as #6cb6d9")
            Color.parse(value)
        except ColorParseError:
            raise ThemeFault(f"{where}.{name} is no colour: {value!r}") from None
    return table
