"""The JSON Schema describes every key of `skippy.toml`."""

from __future__ import annotations

from engine.config.schema import config_schema
from engine.config.settings import SETTINGS, settings_of


def test_every_setting_has_its_default_and_meaning_in_the_schema() -> None:
    schema = config_schema()
    for place in (
        schema["properties"]["defaults"]["properties"],
        schema["properties"]["models"]["additionalProperties"]["properties"],
    ):
        for table in ("topology", "compute", "speculative", "generation"):
            assert place[table]["additionalProperties"] is False
            keys = place[table]["properties"]
            assert list(keys) == [setting.name for setting in settings_of(table)]
            for name, key in keys.items():
                assert key["default"] == SETTINGS[name].default
                assert key["description"]
                assert {"type", "enum", "anyOf"} & set(key)
    assert schema["properties"]["defaults"]["properties"]["model"]["default"] == "demo"


def test_limits_are_in_the_schema() -> None:
    speculative = config_schema()["properties"]["defaults"]["properties"]["speculative"]["properties"]
    assert (speculative["window_max"]["minimum"], speculative["window_max"]["maximum"]) == (1, 256)
    assert "mtp-suffix" in speculative["strategy"]["enum"]
