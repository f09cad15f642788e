"""Precedence, validation, and the way from a plan to TOML and back."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.nodes import NodeSettings
from engine.config.plan import (
    ComputePlan,
    GenerationDefaults,
    RunPlan,
    SpeculationPlan,
    StageAddress,
    TopologyPlan,
)
from engine.config.resolve import plan_to_toml, resolve_plan, with_settings
from engine.config.rules import with_speculation
from engine.config.settings import SETTINGS, value_of
from engine.errors import ConfigError, SkippyError, UsageError
from engine.protocol.messages import LinkEmulation, SamplingSettings, WireType


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "skippy.toml"
        path.write_text(text)
        return path

    return write


def test_without_flags_and_file_the_plan_is_the_default() -> None:
    assert resolve_plan({}, None) == RunPlan()


def test_every_field_of_the_plan_can_be_set() -> None:
    leaves = {
        *(f"compute.{item.name}" for item in fields(ComputePlan)),
        *(f"speculation.{item.name}" for item in fields(SpeculationPlan)),
        *(f"topology.{item.name}" for item in fields(TopologyPlan) if item.name != "emulation"),
        *(f"topology.emulation.{item.name}" for item in fields(LinkEmulation)),
        *(f"generation.{item.name}" for item in fields(GenerationDefaults) if item.name != "sampling"),
        *(f"generation.sampling.{item.name}" for item in fields(SamplingSettings)),
        "model",
    }
    assert {setting.path for setting in SETTINGS.values()} == leaves


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS.values() if s.name != "remote"], ids=lambda s: s.name
)
def test_the_default_of_a_setting_is_allowed(setting: Any) -> None:
    assert setting.kind.check(setting.default) == setting.default


def test_a_flag_beats_the_model_beats_the_defaults(config: Any) -> None:
    path = config(
        """
        [defaults.speculative]
        window_max = 9
        pipeline_depth = 2
        draft_max = 2
        [models.big]
        path = "big.gguf"
        [models.big.speculative]
        window_max = 12
        draft_max = 3
        [models.other]
        path = "other.gguf"
        [models.other.speculative]
        window_max = 20
        """
    )
    plan = resolve_plan({"model": "big", "draft_max": "5"}, path)
    chosen = plan.speculation
    assert (chosen.window_max, chosen.pipeline_depth, chosen.draft_max) == (12, 2, 5)
    assert plan.model == str(path.parent / "big.gguf")
    assert resolve_plan({}, path).speculation.window_max == 9


def test_the_model_of_the_file_is_used_unless_a_flag_names_another(config: Any) -> None:
    path = config('[defaults]\nmodel = "big"\n[models.big]\npath = "sub/big.gguf"\n')
    assert resolve_plan({}, path).model == str(path.parent / "sub" / "big.gguf")
    assert resolve_plan({"model": "demo"}, path).model == "demo"


def test_relative_files_are_meant_from_where_they_are_written(config: Any, tmp_path: Path) -> None:
    path = config('[defaults.speculative]\ndraft_model = "small.gguf"\n')
    assert resolve_plan({}, path).speculation.draft_model == str(tmp_path / "small.gguf")
    assert resolve_plan({"model": "x.gguf"}, None).model == str(Path.cwd() / "x.gguf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[defaults.speculative]\nwindow_mx = 4\n",
            r"window_mx.*\[defaults\.speculative\].*did you mean window_max\?",
        ),
        ("[default]\n", r"'default' in the file.*did you mean defaults\?"),
        ("[models.big]\npth = 'x'\n", r"'pth' in \[models\.big\].*did you mean path\?"),
        (
            "[defaults.speculative]\nwindow_max = 0\n",
            r"window_max in .* whole number between 1 and 256, not 0",
        ),
        (
            "[defaults.speculative]\nwindow_max = '4'\n",
            r"window_max in .*whole number between 1 and 256, not '4'",
        ),
        ("[defaults.generation]\ntop_p = 1.5\n", r"top_p in .* number between 0 and 1, not 1\.5"),
        ("[defaults.compute]\nexact = 1\n", r"exact in .* must be true or false, not 1"),
        (
            "[defaults.speculative]\nstrategy = 'fast'\n",
            r"strategy in .* must be one of auto, .*, not 'fast'",
        ),
        (
            "[defaults.speculative]\nstrategy = 'mtp-sufix'\n",
            r"strategy in .* must be one of auto, .*, not 'mtp-sufix'; did you mean mtp-suffix\?",
        ),
        ("defaults = 3\n", r"defaults in .* must be a table"),
        ("[defaults\n", r"skippy\.toml is not valid TOML"),
        ("[models.demo.speculative]\nwindow_max = 0\n", r"models\.demo\.speculative\.window_max in"),
    ],
)
def test_a_fault_in_the_file_names_the_key_and_what_is_allowed(config: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_plan({}, config(text))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"window_min": "9", "window_max": "4"},
            "--window-min is 9: it must not exceed --window-max, which is 4",
        ),
        ({"draft_min": "5", "draft_max": "2"}, "--draft-min is 5: it must not exceed --draft-max"),
        (
            {"ngram_min": "9", "ngram_max_proposal": "4"},
            "--ngram-min is 9: it must not exceed --ngram-max-proposal",
        ),
        (
            {"strategy": "mtp-cache", "ngram_max": "5"},
            "--ngram-max must be between 1 and 4 for the strategy mtp-cache",
        ),
        ({"strategy": "ngram-suffix", "ngram_min": "2"}, "--ngram-min must be between 3 and 64"),
        ({"window_policy": "godput"}, "adaptive, goodput, not 'godput'; did you mean goodput?"),
        ({"strategy": "draft"}, "needs a draft model; set --draft-model"),
        ({"split": "15,9"}, "--split must ascend, not 15, 9"),
        ({"split": "0"}, "--split must be a whole number, 1 or more"),
        ({"stages": "4", "split": "9,20"}, "--stages is 4, but --split has 2 cuts, so 3 stages"),
        (
            {"remote": ["ws://a:1"], "stages": "2"},
            "--stages cannot be used here: --stage names running stages",
        ),
        ({"remote": ["http://a:1"]}, "--stage must begin with ws:// or wss://"),
        ({"temperature": "nan"}, "--temperature must be a number between 0 and 100, not 'nan'"),
        ({"seed": "-1"}, "--seed must be a whole number between 0 and"),
        ({"logit_bias": ["x"]}, "--logit-bias must be TOKEN=BIAS"),
        ({"widnow_max": "3"}, "did you mean window_max?"),
    ],
)
def test_a_wrong_call_names_the_flag_and_what_is_allowed(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_plan(flags, None)
    assert message in str(caught.value)


def test_defaults_follow_what_was_said() -> None:
    assert resolve_plan({"ngram_min": "40"}, None).speculation.ngram_max == 40
    assert resolve_plan({"extension_max": "1"}, None).speculation.extension_initial == 1
    cache = resolve_plan({"strategy": "ngram-cache"}, None).speculation
    assert (cache.ngram_min, cache.ngram_max) == (3, 4)


def test_cuts_say_how_many_stages_there_are() -> None:
    assert resolve_plan({"split": "9,20"}, None).topology.stages == 3


def test_places_of_a_flag_replace_those_of_the_file(config: Any) -> None:
    path = config('[defaults.topology]\nwire = "f16"\nremote = ["ws://a:1", "ws://b:2"]\n')
    remote = resolve_plan({}, path).topology
    assert (remote.stages, [stage.url for stage in remote.remote]) == (3, ["ws://a:1", "ws://b:2"])
    local = resolve_plan({"stages": "2"}, path).topology
    assert (local.stages, local.remote, local.wire) == (2, (), WireType.F16)


def test_tokens_are_read_from_their_files_and_never_printed(config: Any, tmp_path: Path) -> None:
    (tmp_path / "home.token").write_text("s3cret\n")
    path = config('[defaults.topology]\nremote = [{ url = "ws://a:1", token_file = "home.token" }]\n')
    plan = resolve_plan({}, path)
    assert plan.topology.remote == (StageAddress("ws://a:1", "s3cret", str(tmp_path / "home.token")),)
    assert "s3cret" not in plan_to_toml(plan)
    assert "s3cret" not in repr(plan)
    printed = tmp_path / "printed.toml"
    printed.write_text(plan_to_toml(plan))
    assert resolve_plan({}, printed) == plan


def test_standbys_follow_an_address_after_commas_or_in_its_table(config: Any) -> None:
    of_flag = resolve_plan({"remote": ["ws://a:1,wss://b:2, ws://c:3", "ws://d:4"]}, None)
    assert of_flag.topology.stages == 3
    assert of_flag.topology.remote == (
        StageAddress("ws://a:1", standby=("wss://b:2", "ws://c:3")),
        StageAddress("ws://d:4"),
    )
    path = config('[defaults.topology]\nremote = [{ url = "ws://a:1", standby = ["wss://b:2"] }]\n')
    of_file = resolve_plan({}, path)
    assert of_file.topology.remote == (StageAddress("ws://a:1", standby=("wss://b:2",)),)
    again = config(plan_to_toml(of_flag))
    assert resolve_plan({}, again) == of_flag


@pytest.mark.parametrize("value", ["ws://a:1,", "ws://a:1,http://b:2", ",ws://a:1"])
def test_a_standby_that_is_no_address_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="must begin with ws:// or wss://"):
        resolve_plan({"remote": [value]}, None)


def test_the_environment_has_the_token_of_stages_without_a_file(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPPY_TOKEN", "of-the-environment")
    (tmp_path / "token").write_text("of-the-file")
    path = config('[defaults.topology]\nremote = ["ws://a:1", { url = "ws://b:2", token_file = "token" }]\n')
    plan = resolve_plan({}, path)
    assert [stage.token for stage in plan.topology.remote] == ["of-the-environment", "of-the-file"]
    assert "of-the-environment" not in plan_to_toml(plan)


def test_a_missing_or_odd_token_file_is_named(config: Any, tmp_path: Path) -> None:
    path = config('[defaults.topology]\nremote = [{ url = "ws://a:1", token_file = "none" }]\n')
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: No such file or directory$"):
        resolve_plan({}, path)
    (tmp_path / "none").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: it is not UTF-8 text$"):
        resolve_plan({}, path)
    (tmp_path / "none").write_text("two words")
    with pytest.raises(ConfigError, match="must hold one word"):
        resolve_plan({}, path)


def test_settings_change_while_an_engine_runs() -> None:
    plan = with_settings(RunPlan(), {"temperature": "0.7", "window_max": 8})
    assert plan.generation.sampling.temperature == 0.7
    assert plan.speculation.window_max == 8
    assert replace(plan, generation=RunPlan().generation, speculation=RunPlan().speculation) == RunPlan()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stages": "3"}, "stages cannot change while the engine runs; start again with --stages"),
        ({"temprature": "1"}, "did you mean temperature?"),
        ({"window_min": "20"}, "window_min is 20: it must not exceed window_max, which is 16"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SkippyError) as caught:
        with_settings(RunPlan(), values)
    assert message in str(caught.value)


def test_another_strategy_brings_bounds_that_fit_it() -> None:
    suffix = resolve_plan({"strategy": "ngram-suffix", "ngram_max": "20"}, None).speculation
    cache = with_speculation(suffix, {"strategy": "ngram-cache"})
    assert (cache.ngram_min, cache.ngram_max) == (3, 4)
    with pytest.raises(ConfigError, match="ngram_max must be between 1 and 4"):
        with_speculation(suffix, {"strategy": "ngram-cache", "ngram_max": 20})


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_the_flag_of_a_setting_reaches_its_field(setting: Any) -> None:
    samples: dict[str, Any] = {"model": "x", "remote": ["ws://h:1"], "split": "3,5", "wire": "q8"}
    samples |= {"strategy": "mtp", "window_policy": "fixed", "context": "99"}
    samples |= {"exact": True, "raw": True, "use_nodes": True}
    samples |= {"stop": ["a"], "logit_bias": ["1=2"], "top_p": "0.3", "min_p": "0.3"}
    given_value = samples.get(setting.name, "7")
    plan = resolve_plan({setting.name: given_value}, None)
    assert value_of(plan, setting) != setting.default


NODES = (NodeSettings("a:1", "ws://a:1"), NodeSettings("b:1", "ws://b:1"))


def test_nodes_that_a_call_names_are_all_used() -> None:
    topology = resolve_plan({}, None, NODES).topology
    assert (topology.use_nodes, topology.stages) == (True, 3)


def test_a_call_may_say_how_many_stages_or_where_they_begin() -> None:
    assert resolve_plan({"stages": 2}, None, NODES).topology.stages == 2
    split = resolve_plan({"split": "3,5"}, None, NODES).topology
    assert (split.split, split.stages) == ((3, 5), 3)


def test_nodes_of_the_file_are_used_when_asked_for_in_as_many_stages_as_are_best(config: Any) -> None:
    path = config('[[nodes]]\nname = "a"\nurl = "ws://a:1"\n')
    assert not resolve_plan({}, path).topology.use_nodes
    plan = resolve_plan({"use_nodes": True}, path)
    assert (plan.topology.use_nodes, plan.topology.stages, plan.nodes[0].name) == (True, 0, "a")
    named = resolve_plan({}, path, NODES)
    assert [node.name for node in named.nodes] == ["a:1", "b:1"]


@pytest.mark.parametrize("flags", [{}, {"stages": 2}, {"split": "3,5"}], ids=str)
def test_a_plan_over_nodes_reads_back_as_the_same_plan(flags: dict[str, Any], tmp_path: Path) -> None:
    plan = resolve_plan(flags, None, NODES)
    path = tmp_path / "printed.toml"
    path.write_text(plan_to_toml(plan), encoding="utf-8")
    assert resolve_plan({}, path) == plan


def test_nodes_and_running_stages_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--stage and --node exclude each other"):
        resolve_plan({"remote": ["ws://h:1"]}, None, NODES)


def test_a_draft_model_may_be_a_name(config: Any, tmp_path: Path) -> None:
    path = config('[models.small]\npath = "small.gguf"\n')
    drafted = {"strategy": "draft", "draft_model": "small"}
    assert resolve_plan(drafted, path).speculation.draft_model == str(tmp_path / "small.gguf")
    assert resolve_plan({**drafted, "draft_model": "demo"}, path).speculation.draft_model == "demo"
    assert resolve_plan({**drafted, "draft_model": "demo"}, None).speculation.draft_model == "demo"
    assert resolve_plan({**drafted, "draft_model": "d.gguf"}, None).speculation.draft_model == str(
        Path.cwd() / "d.gguf"
    )
