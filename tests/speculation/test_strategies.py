"""Which strategy runs, and what is said when it is another than the one asked for."""

from __future__ import annotations

import pytest

from engine.config.plan import STRATEGIES
from engine.errors import ConfigError
from engine.speculation.strategies import Resolved, resolve_strategy


def resolve(name: str, **changes: object) -> Resolved:
    values = {"native_mtp": True, "can_rollback": True, "window_rows": 8, "draft_model": True, **changes}
    return resolve_strategy(name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_runs_where_it_has_what_it_needs(name: str) -> None:
    assert resolve(name) == Resolved(name)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "disabled"])
def test_nothing_runs_without_rollback_or_room_for_drafts(name: str) -> None:
    for changes, reason in (({"can_rollback": False}, "rolled back"), ({"window_rows": 1}, "one row")):
        resolved = resolve(name, **changes)
        assert resolved.strategy == "disabled"
        assert reason in resolved.note


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("mtp", "disabled"),
        ("mtp-simple", "ngram-simple"),
        ("mtp-cache", "ngram-cache"),
        ("mtp-suffix", "ngram-suffix"),
        ("auto", "auto"),
    ],
)
def test_without_a_head_what_is_left_runs(name: str, runs: str) -> None:
    resolved = resolve(name, native_mtp=False)
    assert resolved.strategy == runs
    assert bool(resolved.note) == (name != "auto")


def test_a_draft_strategy_without_a_model_is_off() -> None:
    resolved = resolve("draft", draft_model=False)
    assert resolved.strategy == "disabled"
    assert "draft model" in resolved.note


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'fast'.*ngram-simple"):
        resolve("fast")
