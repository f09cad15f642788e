"""Every setting takes effect in the code that it is for, a bad value is refused by name, and all are printed.

What takes effect is seen in the part that uses the plan - simulated answers, the sampler, the emulated link,
the settings of a stage - for two plans that differ in that one setting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cli import main as tools
from engine.cli import stage as stage_command
from engine.cli.setup import request_of
from engine.compute.sampler import Sampler
from engine.config.kinds import Address, Choice, Items, Kind, Number, Switch, Text, TokenBias, Url, Whole
from engine.config.layers import read_config_file
from engine.config.nodes import NODE_KEYS
from engine.config.plan import RunPlan
from engine.config.resolve import plan_to_toml, resolve_plan
from engine.config.settings import SETTINGS, Setting, value_of
from engine.config.ui import UI_DEFAULTS, UI_SETTINGS
from engine.coordinator.drafting import Drafting
from engine.coordinator.layout import check_fingerprint, local_layout, stage_count
from engine.coordinator.stages import Stages
from engine.errors import ConfigError, HandshakeRefused, SkippyError, UsageError
from engine.model.file import ModelFile
from engine.protocol.activations import round_trip
from engine.speculation.ngram_counts import NgramCounts
from engine.stage.process import StageSettings
from engine.transport.emulation import Schedule
from tests.model.gguf_files import write_small_model
from tests.speculation.driving import scripted
from tests.speculation.simulator import FakeMtp

Effect = Callable[[RunPlan, Path], Any]


# What uses the plan -------------------------------------------------------------------------------------


def _text() -> list[int]:
    """Phrases that come again, with changes: something for every kind of lookup."""
    random = Random(5)
    phrases = [[random.randrange(40) for _ in range(random.randrange(4, 14))] for _ in range(6)]
    return [token for _ in range(60) for token in (*random.choice(phrases), random.randrange(40))]


def simulated(plan: RunPlan, folder: Path) -> Any:
    """The windows of an answer, over a text that can partly be looked up, with a head that is often right."""
    text = _text()
    run = scripted(text[:200], text[200:420], plan.speculation, mtp=FakeMtp(acceptance=0.7)).run()
    assert run.tokens == text[200:420]
    return [(window.start, window.tokens, window.draft_budget) for window in run.plans]


def drafted_with_files(plan: RunPlan, folder: Path) -> Any:
    """What an engine opens for drafting, and what is there when it has ended."""
    model = ModelFile.open(write_small_model(folder / "model.gguf"))
    (folder / "counts").write_bytes(NgramCounts().to_bytes())
    try:
        drafting = Drafting(plan.speculation, model, context=64)
    except SkippyError as error:
        return str(error)
    drafting.close()
    return drafting.static is not None, (folder / "learned").exists()


def drawn(plan: RunPlan, folder: Path) -> Any:
    """Tokens that a last stage draws."""
    random = np.random.default_rng(0)
    sampler = Sampler(plan.generation.sampling, 32)
    tokens: list[int] = []
    for position in range(120):
        tokens.append(sampler.draw(random.normal(size=32).astype(np.float32), tokens, position))
    return tokens


def asked(plan: RunPlan, folder: Path) -> Any:
    """The request of a front end."""
    request = request_of(plan, [{"role": "user", "content": "Why?"}], "session")
    return replace(request, request="")


def laid_out(plan: RunPlan, folder: Path) -> Any:
    model = ModelFile.open(write_small_model(folder / "model.gguf"))
    count = stage_count(plan, model)
    return local_layout(plan, model, tuple(range(1, count)))


def arrivals(plan: RunPlan, folder: Path) -> Any:
    """When frames arrive over an emulated link."""
    schedule = Schedule(plan.topology.emulation, "link")
    return [schedule.arrival(number / 10, 1000) for number in range(5)]


def rounded(plan: RunPlan, folder: Path) -> Any:
    """Hidden states behind the wire."""
    rows = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 64)
    return round_trip(rows, plan.topology.wire).tolist()


def connected(plan: RunPlan, folder: Path) -> Any:
    """What becomes of an engine's stages; here, who cannot be reached or read."""
    model = ModelFile.open(write_small_model(folder / "model.gguf"))

    async def start() -> None:
        stages = Stages(plan, model, emit=lambda event: None, tell=lambda text, fraction: None)
        if plan.topology.remote or plan.topology.use_nodes:
            await stages.start(lambda done, total: None)

    try:
        asyncio.run(start())
    except (SkippyError, OSError) as error:
        return str(error)
    return ""


def served(plan: RunPlan, folder: Path) -> StageSettings:
    """The settings with which `skippy-engine stage` serves."""
    seen: list[StageSettings] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder))
        (folder / "skippy").mkdir(exist_ok=True)
        (folder / "skippy" / "skippy.toml").write_text(plan_to_toml(plan))
        patch.setattr(stage_command, "run", seen.append)
        assert tools.main(["stage", "--layers", "0:1"]) == 0
    return seen[0]


Case = tuple[Effect, str, dict[str, str]]
"""What uses the setting; a value for it (`{}` is the test's folder); what else is said for both plans."""

FIXED = {"window_policy": "fixed"}
MTP = {**FIXED, "strategy": "mtp"}


def admitted(plan: RunPlan, folder: Path) -> bool:
    """Whether a model may run."""
    write_small_model(folder / "small.gguf")
    try:
        check_fingerprint(plan, ModelFile.open(folder / "small.gguf"))
    except HandshakeRefused:
        return False
    return True


COMPOSITE = {**FIXED, "strategy": "mtp-suffix", "draft_max": "2"}
WARM = {"temperature": "1.5"}

CASES: dict[str, Case] = {
    "model": (served, "{}/model.gguf", {}),
    "stages": (laid_out, "3", {}),
    "split": (laid_out, "2", {}),
    "remote": (connected, "ws://127.0.0.1:1", {}),
    "tls_ca": (connected, "{}/nobody.pem", {}),
    "wire": (rounded, "q8", {}),
    "emulate_rtt_ms": (arrivals, "20", {}),
    "emulate_jitter_ms": (arrivals, "10", {"emulate_rtt_ms": "20"}),
    "emulate_mbps": (arrivals, "1", {}),
    "emulate_seed": (arrivals, "9", {"emulate_rtt_ms": "20", "emulate_jitter_ms": "10"}),
    "threads": (served, "3", {}),
    "exact": (served, "on", {}),
    "gpu_layers": (served, "5", {}),
    "gpu_device": (served, "1", {}),
    "context": (served, "64", {}),
    "sequences": (served, "4", {}),
    "prefill_rows": (served, "16", {}),
    "slice_cache_gib": (served, "5", {}),
    "strategy": (simulated, "ngram-simple", {}),
    "window_policy": (simulated, "fixed", {}),
    "window_min": (simulated, "4", {"strategy": "mtp", "window_policy": "adaptive", "window_max": "5"}),
    "window_max": (simulated, "3", FIXED),
    "pipeline_depth": (simulated, "1", {**FIXED, "strategy": "ngram-suffix", "window_max": "3"}),
    "draft_max": (simulated, "2", MTP),
    "draft_min": (simulated, "4", {**MTP, "window_max": "3"}),
    "reject_cooldown_tokens": (simulated, "5", MTP),
    "suppress_cooldown_draft_limit": (simulated, "3", {**MTP, "reject_cooldown_tokens": "3"}),
    "ngram_min": (simulated, "6", {**FIXED, "strategy": "ngram-simple"}),
    "ngram_max": (simulated, "3", {**FIXED, "strategy": "ngram-suffix"}),
    "ngram_max_proposal": (simulated, "4", {**FIXED, "strategy": "ngram-simple"}),
    "extension_initial": (simulated, "5", COMPOSITE),
    "extension_max": (simulated, "3", COMPOSITE),
    "tail_backoff_proposals": (simulated, "6", COMPOSITE),
    "ngram_static_file": (drafted_with_files, "{}/counts", {}),
    "ngram_dynamic_file": (drafted_with_files, "{}/learned", {}),
    "draft_model": (drafted_with_files, "{}/nobody.gguf", {}),
    "max_tokens": (asked, "7", {}),
    "temperature": (drawn, "1.5", {}),
    "top_k": (drawn, "2", WARM),
    "top_p": (drawn, "0.3", WARM),
    "min_p": (drawn, "0.5", WARM),
    "repeat_penalty": (drawn, "3", {}),
    "repeat_last_n": (drawn, "2", {"repeat_penalty": "3"}),
    "presence_penalty": (drawn, "2", {}),
    "frequency_penalty": (drawn, "2", {}),
    "logit_bias": (drawn, "7=100", {}),
    "seed": (drawn, "7", WARM),
    "grammar": (asked, 'root ::= "yes"', {}),
    "stop": (asked, "END", {}),
    "system": (asked, "Be brief.", {}),
    "raw": (asked, "on", {}),
    "fingerprint": (admitted, "0" * 32, {}),
    "use_nodes": (connected, "on", {}),
}


def test_every_setting_has_a_case() -> None:
    assert set(CASES) == set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_setting_takes_effect(setting: Setting, tmp_path: Path) -> None:
    effect, text, others = CASES[setting.name]
    nodes = "[[nodes]]\nname = 'n'\nurl = 'ws://127.0.0.1:1'\n"
    (tmp_path / "nodes.toml").write_text(nodes)
    plans = [
        resolve_plan({**others, **said}, tmp_path / "nodes.toml")
        for said in ({}, {setting.name: text.format(tmp_path)})
    ]
    assert effect(plans[0], tmp_path) != effect(plans[1], tmp_path)


# Bad values ---------------------------------------------------------------------------------------------


def bad_values(kind: Kind) -> list[Any]:
    """What a kind must refuse in a file: a wrong type, and what is out of its range."""
    if isinstance(kind, Whole | Number):
        above = [] if kind.maximum is None else [kind.maximum + 1]
        return ["many", True, kind.minimum - 1, *above]
    if isinstance(kind, Choice):
        return ["nothing-of-the-kind", 3]
    if isinstance(kind, Switch):
        return ["on", 1]
    if isinstance(kind, Text):
        return [3, False]
    if isinstance(kind, Url | Address):
        return ["http://host:1", 3]
    if isinstance(kind, Items):
        return ["one", *([item] for item in bad_values(kind.item))]
    assert isinstance(kind, TokenBias)
    return ["15", [1], [-1, 0.5], [1, "much"]]


BAD = [(setting, value) for setting in SETTINGS.values() for value in bad_values(setting.kind)]


@pytest.mark.parametrize(("setting", "value"), BAD, ids=[f"{s.name}-{v!r}"[:40] for s, v in BAD])
def test_a_bad_value_in_a_file_is_refused_by_name(setting: Setting, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "skippy.toml"
    table = {setting.table: {setting.name: value}} if setting.table else {setting.name: value}
    entry = table if setting.table else {"path": value}
    for name, data in (("defaults", {"defaults": table}), ("models.demo", {"models": {"demo": entry}})):
        key = setting.key if setting.table or name == "defaults" else "path"
        path.write_text(tomli_w.dumps(data))
        with pytest.raises(ConfigError) as caught:
            resolve_plan({}, path)
        assert str(caught.value).startswith(f"{name}.{key} in {path} must ")
        assert caught.value.exit_code == 2


FLAGS_OF_TEXT = [setting for setting in SETTINGS.values() if not isinstance(setting.kind, Text)]


@pytest.mark.parametrize(
    "setting", [s for s in FLAGS_OF_TEXT if s.name != "stop"], ids=lambda setting: setting.name
)
def test_a_bad_flag_is_refused_by_name(setting: Setting) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_plan({setting.name: "x y"}, None)
    assert str(caught.value).startswith(f"{setting.flag} must ")


OTHERS = [
    ("nodes", key, entry, value) for key, entry in NODE_KEYS.items() for value in bad_values(entry.kind)
]
OTHERS += [
    ("ui", key, entry, value) for key, entry in UI_SETTINGS.items() for value in bad_values(entry.kind)
]


@pytest.mark.parametrize(
    ("table", "key", "entry", "value"), OTHERS, ids=[f"{o[0]}-{o[1]}-{o[3]!r}"[:40] for o in OTHERS]
)
def test_a_bad_value_of_nodes_and_ui_is_refused_by_name(
    table: str, key: str, entry: Any, value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "skippy.toml"
    node = {"name": "n", "url": "ws://a:1", key: value}
    path.write_text(tomli_w.dumps({"nodes": [node]} if table == "nodes" else {"ui": {key: value}}))
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    name = "nodes[0]" if table == "nodes" else "ui"
    assert str(caught.value).startswith(f"{name}.{key} in {path} must ")


# Printing -----------------------------------------------------------------------------------------------


def values_of_kind(kind: Kind) -> st.SearchStrategy[Any]:
    """Good values of a kind, typed as in a file."""
    if isinstance(kind, Whole):
        return st.integers(kind.minimum, kind.minimum + 300 if kind.maximum is None else kind.maximum)
    if isinstance(kind, Number):
        return st.floats(kind.minimum, kind.maximum, allow_nan=False)
    if isinstance(kind, Choice):
        return st.sampled_from(kind.words)
    if isinstance(kind, Switch):
        return st.booleans()
    if isinstance(kind, Text):
        names = st.sampled_from(["/a/file", "/another file.gguf", "/caf\u00e9"])
        return names if kind.is_file else st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if isinstance(kind, Items) and kind.ascending:
        return st.lists(values_of_kind(kind.item), max_size=4, unique=True).map(sorted)
    if isinstance(kind, Items):
        return st.lists(values_of_kind(kind.item), max_size=3)
    if isinstance(kind, TokenBias):
        return st.tuples(st.integers(0, 99), st.floats(-9, 9))
    raise AssertionError(kind)


def calls() -> st.SearchStrategy[dict[str, Any]]:
    """Any settings with any values; where the layers run is said in one way only."""
    optional = {
        setting.name: values_of_kind(setting.kind)
        for setting in SETTINGS.values()
        if setting.name not in ("stages", "split", "remote", "use_nodes")
    }
    places = st.one_of(
        st.just({}),
        st.fixed_dictionaries({"stages": values_of_kind(SETTINGS["stages"].kind)}),
        st.fixed_dictionaries({"split": values_of_kind(SETTINGS["split"].kind)}),
        st.just({"remote": ({"url": "ws://a:1", "standby": ("wss://b:2",)}, {"url": "ws://c:3"})}),
    )
    return st.tuples(st.fixed_dictionaries({}, optional=optional), places).map(
        lambda two: {**two[0], **two[1]}
    )


@settings(max_examples=60)
@given(flags=calls(), with_nodes=st.booleans())
def test_a_printed_plan_of_any_settings_reads_back_as_the_same_plan(
    flags: dict[str, Any], with_nodes: bool, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    said, printed = folder / "said.toml", folder / "printed-again.toml"
    (folder / "node.token").write_text("secret")
    node = {"name": "n", "url": "ws://n:1", "token_file": "node.token", "memory_limit_gib": 1.5}
    said.write_text(tomli_w.dumps({"nodes": [node, {"name": "m", "url": "ws://m:1"}]} if with_nodes else {}))
    try:
        plan = resolve_plan(flags, said)
    except ConfigError:
        return  # settings that do not go together; which ones is tested elsewhere
    text = plan_to_toml(plan)
    printed.write_text(text, encoding="utf-8")
    assert "secret" not in text
    assert resolve_plan({}, printed) == plan
    assert all(value_of(plan, SETTINGS[name]) is not None for name in flags)
    assert [node.token for node in plan.nodes] == (["secret", ""] if with_nodes else [])


def test_what_ui_says_is_read(tmp_path: Path) -> None:
    (tmp_path / "skippy.toml").write_text('[ui]\ntheme = "paper"\ntokens = true\npanels = false\n')
    ui = read_config_file(tmp_path / "skippy.toml").ui
    assert {key: getattr(ui, key) for key in UI_SETTINGS} == {
        "theme": "paper",
        "tokens": True,
        "panels": False,
    }
    assert all(getattr(ui, key) != UI_DEFAULTS[key] for key in UI_SETTINGS)
