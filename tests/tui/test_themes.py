"""Theme files: the shipped ones are whole and readable, bad ones are named and skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from skippy_tui.themes import DEFAULT_THEME, ORIGINS, load_themes, shipped_themes

# How strongly a token's colour tints what is behind it, at most (skippy_tui.widgets.tokens).
TINT = 0.26


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of WCAG 2, 1 to 21."""

    def luminance(color: Color) -> float:
        parts = [part / 255 for part in color.rgb]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


THEMES = load_themes([shipped_themes()])


def test_every_shipped_theme_loads() -> None:
    assert THEMES.faults == ()
    assert len(THEMES.themes) >= 6
    assert DEFAULT_THEME in THEMES.themes
    assert any(not theme.dark for theme in THEMES.themes.values())


@pytest.mark.parametrize("name", THEMES.themes)
def test_texts_and_origins_can_be_read_on_the_background(name: str) -> None:
    theme = THEMES.themes[name]
    background = Color.parse(theme.background)
    least = 7.0 if name == "contrast" else 4.5
    assert contrast(background, Color.parse(theme.foreground)) >= 7.0
    for origin in ORIGINS:
        color = Color.parse(theme.variables[f"origin-{origin}"])
        assert contrast(background, color) >= least, origin
        assert contrast(background.blend(color, TINT), color) >= 3.0, origin


@pytest.mark.parametrize("name", THEMES.themes)
def test_no_two_origins_share_a_colour(name: str) -> None:
    colors = [THEMES.themes[name].variables[f"origin-{origin}"] for origin in ORIGINS]
    assert len(set(colors)) == len(ORIGINS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not toml", "Expected"),
        ("name = 'x'", "[colors] is missing"),
        ("name = 'x'\n[colors]\nprimary = 'bluish'", "colors.primary is no colour: 'bluish'"),
        ("name = 'x'\n[colors]\naccent = '#112233'", "colors.primary is missing"),
        ("name = 'x'\n[colors]\nprimary = '#112233'\nprimray = '#112233'", "unknown key colors.primray"),
        ("name = 'x'\ndark = 3\n[colors]\nprimary = '#112233'", "dark must be true or false"),
    ],
)
def test_a_bad_theme_is_named_with_its_reason_and_skipped(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "other.toml").write_text("name = 'other'\n[colors]\nprimary = '#8899aa'")
    themes = load_themes([tmp_path, tmp_path / "missing"])
    assert list(themes.themes) == ["other"]
    (fault,) = themes.faults
    assert fault.startswith("theme mine.toml skipped: ")
    assert reason in fault


def test_a_theme_of_the_user_replaces_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("name = 'paper'\n[colors]\nprimary = '#8899aa'")
    assert load_themes([shipped_themes(), tmp_path]).themes["paper"].primary == "#8899aa"
