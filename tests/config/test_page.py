"""The page of all settings is the one that the tables give."""

from __future__ import annotations

from pathlib import Path

from engine.config.nodes import NODE_KEYS
from engine.config.page import configuration_page
from engine.config.settings import SETTINGS
from engine.config.ui import UI_SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), "run `make docs`"


def test_every_key_is_on_the_page() -> None:
    page = configuration_page()
    for setting in SETTINGS.values():
        assert f"| `{setting.name}` | `{setting.flag}` |" in page
    for key in (*NODE_KEYS, *UI_SETTINGS):
        assert f"| `{key}` | " in page
