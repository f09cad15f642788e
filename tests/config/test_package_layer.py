"""What a package says holds unless a person says something, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.plan import RunPlan
from engine.config.resolve import plan_to_toml, resolve_plan
from engine.errors import PackageError, UsageError
from tests.config.packages import changed, put


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Three slices; its default is mtp-cache in windows of 2 to 5."""
    return put(tmp_path / "package")


def resolved(package: Path, config: str = "", **flags: Any) -> RunPlan:
    path = package.parent / "skippy.toml"
    path.write_text(config)
    return resolve_plan({"model": str(package), **flags}, path)


def test_a_package_is_above_the_defaults(package: Path) -> None:
    plan = resolved(package)
    chosen = plan.speculation
    assert chosen.strategy == "mtp-cache"
    assert (chosen.window_policy, chosen.window_min, chosen.window_max) == ("fixed", 2, 5)
    assert (chosen.pipeline_depth, chosen.draft_max, chosen.draft_min) == (2, 2, 1)
    assert (chosen.ngram_min, chosen.ngram_max, chosen.ngram_max_proposal) == (2, 3, 12)
    assert (chosen.extension_initial, chosen.extension_max, chosen.tail_backoff_proposals) == (3, 7, 4)
    assert chosen.reject_cooldown_tokens == RunPlan().speculation.reject_cooldown_tokens  # nobody said it
    assert (plan.topology.split, plan.topology.stages) == ((2, 4), 3)


def test_defaults_are_above_the_package_the_model_above_them_and_flags_above_all(package: Path) -> None:
    config = """
        [defaults.speculative]
        window_max = 9
        draft_max = 3
        pipeline_depth = 3
        [models.it]
        path = "package"
        [models.it.speculative]
        draft_max = 4
        pipeline_depth = 5
        """
    chosen = resolved(package, config, model="it", pipeline_depth="6").speculation
    assert (chosen.window_min, chosen.window_max, chosen.draft_max, chosen.pipeline_depth) == (2, 9, 4, 6)


def test_the_values_are_those_of_the_strategy_that_runs(package: Path) -> None:
    simple = resolved(package, strategy="ngram-simple").speculation
    assert (simple.strategy, simple.ngram_min, simple.ngram_max) == ("ngram-simple", 5, 6)
    assert simple.window_max == RunPlan().speculation.window_max  # this strategy has no window policy there
    of_file = resolved(package, '[defaults.speculative]\nstrategy = "mtp"\n').speculation
    assert (of_file.strategy, of_file.draft_max, of_file.window_max) == ("mtp", 2, 5)
    assert of_file.ngram_max_proposal == RunPlan().speculation.ngram_max_proposal
    assert resolved(package, strategy="disabled").speculation.strategy == "disabled"


def test_a_package_gives_way_where_it_does_not_fit_what_a_person_says(package: Path) -> None:
    chosen = resolved(package, window_max="1", draft_max="1", extension_max="2").speculation
    assert (chosen.window_min, chosen.window_max, chosen.extension_initial) == (1, 1, 2)
    with pytest.raises(UsageError, match="--window-min is 9: it must not exceed --window-max, which is 4"):
        resolved(package, window_min="9", window_max="4")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"stages": "3"}, ((2, 4), 3)),
        ({"stages": "2"}, ((), 2)),
        ({"split": "3"}, ((3,), 2)),
    ],
    ids=str,
)
def test_stages_that_a_person_asks_for_come_first(package: Path, flags: Any, expected: Any) -> None:
    topology = resolved(package, **flags).topology
    assert (topology.split, topology.stages) == expected
    remote = resolved(package, remote=["ws://a:1"]).topology
    assert (remote.split, len(remote.remote)) == ((), 1)


def test_a_package_of_one_slice_is_one_stage(tmp_path: Path) -> None:
    whole = {"path": "layers-0-6.gguf", "bytes": 1, "sha256": "a" * 64, "layers": [0, 6]}
    topology = resolved(put(tmp_path / "package", changed("slices", [whole]))).topology
    assert (topology.split, topology.stages) == ((), 1)


def test_a_printed_plan_of_a_package_reads_back_as_the_same_plan(package: Path) -> None:
    for flags in ({}, {"strategy": "mtp", "stages": "2"}, {"window_max": "1"}):
        plan = resolved(package, **flags)
        printed = package.parent / "printed.toml"
        printed.write_text(plan_to_toml(plan))
        assert resolve_plan({}, printed) == plan


def test_a_package_is_found_by_its_bare_name_unless_a_model_has_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package.parent)
    assert resolve_plan({"model": "package"}, None).model == str(package)
    assert resolved(package, model="package").model == str(package)
    (package.parent / "folder").mkdir()
    monkeypatch.chdir(package.parent / "folder")
    assert resolve_plan({}, _file(package, '[defaults]\nmodel = "package"\n')).model == str(package)
    other = '[models.package]\npath = "other.gguf"\n'
    monkeypatch.chdir(package.parent)
    assert resolved(package, other, model="package").model == str(package.parent / "other.gguf")


def _file(package: Path, text: str) -> Path:
    path = package.parent / "skippy.toml"
    path.write_text(text)
    return path


def test_a_broken_package_is_told_when_the_plan_is_made(tmp_path: Path) -> None:
    broken = put(tmp_path / "package", changed("front.path", "../front.gguf"))
    with pytest.raises(PackageError, match=r"\(unsafe_path\)"):
        resolved(broken)
