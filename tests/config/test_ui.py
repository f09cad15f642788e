"""The table `[ui]`: read, checked, and part of the schema."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from engine.config.layers import read_config_file
from engine.config.resolve import resolve_plan
from engine.config.schema import config_schema
from engine.config.ui import UI_DEFAULTS, UI_SETTINGS, UiPlan
from engine.errors import ConfigError


def test_it_is_read_beside_the_settings_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "skippy.toml"
    path.write_text('[ui]\ntheme = "paper"\ntokens = true\n[defaults.compute]\nthreads = 3\n')
    assert read_config_file(path).ui == UiPlan(theme="paper", tokens=True, panels=True)
    assert resolve_plan({}, path).compute.threads == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[ui]\nthem = 'paper'", r"unknown key 'them' in \[ui\].*did you mean theme"),
        ("[ui]\npanels = 'no'", "ui.panels in .* must be true or false, not 'no'"),
        ("ui = 3", "ui in .* must be a table"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "skippy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        resolve_plan({}, path)


def test_every_key_has_its_default_and_meaning_in_the_schema() -> None:
    table = config_schema()["properties"]["ui"]
    assert list(table["properties"]) == list(UI_SETTINGS) == [item.name for item in fields(UiPlan)]
    assert table["additionalProperties"] is False
    for key, entry in table["properties"].items():
        assert entry["default"] == UI_DEFAULTS[key]
        assert entry["description"]
