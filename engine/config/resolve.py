"""From flags, `skippy.toml` and the model's package to one resolved plan, and from a plan back to TOML.

Precedence, setting by setting: flag > `[models.NAME]` > `[defaults]` > package > default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from engine.config.layers import ConfigFile, Layer, layer_of_flags, read_config_file
from engine.config.manifest import is_package
from engine.config.nodes import NODE_KEYS, NodeSettings
from engine.config.package_layer import package_layer
from engine.config.plain import from_plain
from engine.config.plan import (
    ComputePlan,
    GenerationDefaults,
    RunPlan,
    SpeculationPlan,
    StageAddress,
    TopologyPlan,
)
from engine.config.rules import check_speculation, fit_unsaid, with_speculation
from engine.config.settings import SETTINGS, nearest, value_of
from engine.errors import ConfigError, UsageError, reason_of

Place = TypeVar("Place", StageAddress, NodeSettings)

# Settings that say where the layers run: whoever says one of them says it all.
_PLACES = ("stages", "split", "remote", "use_nodes")

TOKEN_VARIABLE = "SKIPPY_TOKEN"
"""Environment variable with the token of stages that no file was named for, on both sides."""

# Tables whose settings can change while an engine runs.
LIVE_TABLES = ("generation", "speculative")


def resolve_plan(
    flags: Mapping[str, Any], config_file: Path | None, nodes: Sequence[NodeSettings] = ()
) -> RunPlan:
    """The plan of a run. Whoever names `nodes` in the call wants them used, instead of those of the file.

    `flags` holds values by setting name: texts as given on a command line (a list of them for a repeated
    flag) or typed values; None means that the flag was not given. Raises UsageError or ConfigError, and
    PackageError when the model is a package whose manifest breaks a rule.
    """
    file = None if config_file is None else read_config_file(config_file)
    said = _merge(_layers(_with_nodes(layer_of_flags(flags), nodes), file))
    merged = _above_package(said)
    plain = asdict(RunPlan())
    for name, value in merged.values.items():
        _put(plain, SETTINGS[name].path.split("."), value)
    drafter = file.models.get(plain["speculation"]["draft_model"]) if file is not None else None
    if drafter is not None and "model" in drafter.values:
        plain["speculation"]["draft_model"] = drafter.values["model"]
    speculation = from_plain(SpeculationPlan, plain["speculation"], "speculative")
    speculation = fit_unsaid(speculation, said.values)

    def where(name: str) -> str:
        return merged.where.get(name, SETTINGS[name].flag)

    check_speculation(speculation, where)
    topology = _topology(from_plain(TopologyPlan, plain["topology"], "topology"), said)
    configured = file.nodes if file is not None else ()
    return RunPlan(
        model=plain["model"],
        topology=topology,
        compute=from_plain(ComputePlan, plain["compute"], "compute"),
        speculation=speculation,
        generation=from_plain(GenerationDefaults, plain["generation"], "generation"),
        nodes=with_tokens(nodes or configured),
    )


def with_settings(plan: RunPlan, values: Mapping[str, Any]) -> RunPlan:
    """The plan with settings of answers and of speculation changed, as can be done while an engine runs.

    Values are texts or typed. Raises UsageError for a setting that only a new engine can take on.
    """
    live = {name: setting for name, setting in SETTINGS.items() if setting.table in LIVE_TABLES}
    for name in values:
        if name not in SETTINGS:
            raise UsageError(f"there is no setting {name!r}", hint=nearest(name, live))
        if name not in live:
            hint = f"start again with {SETTINGS[name].flag}"
            raise UsageError(f"{name} cannot change while the engine runs", hint=hint)
    plain = asdict(plan)
    for name, value in layer_of_flags(values).values.items():
        _put(plain, SETTINGS[name].path.split("."), value)
    of_speculation = {name: values[name] for name in values if live[name].table == "speculative"}
    speculation = with_speculation(plan.speculation, of_speculation)
    return from_plain(RunPlan, {**plain, "speculation": asdict(speculation)}, "plan")


def plan_to_toml(plan: RunPlan) -> str:
    """The plan as a `skippy.toml` that resolves to the same plan. Tokens of stages are not in it."""
    import tomli_w  # only needed to show a plan

    defaults: dict[str, Any] = {}
    for setting in SETTINGS.values():
        value = value_of(plan, setting)
        if setting.name in _PLACES and setting.name not in _places_of(plan.topology):
            continue
        table = defaults.setdefault(setting.table, {}) if setting.table else defaults
        table[setting.name] = _toml_value(value)
    nodes = {"nodes": [_node_table(node) for node in plan.nodes]} if plan.nodes else {}
    return tomli_w.dumps({"defaults": defaults, **nodes})


def _places_of(topology: TopologyPlan) -> tuple[str, ...]:
    """The settings that say where the layers of this plan run."""
    if topology.remote:
        return ("remote",)
    if topology.use_nodes:
        count = ("split",) if topology.split else ("stages",) if topology.stages else ()
        return ("use_nodes", *count)
    return ("stages", "split")


def _with_nodes(flags: Layer, nodes: Sequence[NodeSettings]) -> Layer:
    """Whoever names nodes wants layers on each of them, unless the call gives the stages or the cuts."""
    if not nodes:
        return flags
    named: dict[str, Any] = {"use_nodes": True, "stages": len(nodes) + 1}
    if "split" in flags.values:
        del named["stages"]
    return Layer({**named, **flags.values}, {**dict.fromkeys(named, "--node"), **flags.where})


def _layers(flags: Layer, file: ConfigFile | None) -> list[Layer]:
    """What a person said, lowest layer first. The name of the model selects an entry of `[models]`."""
    if file is None:
        return [flags, _bare_package(flags, Path.cwd())]
    said = [file.defaults, flags]
    name = _merge(said).values.get("model", RunPlan().model)
    entry = file.models.get(name)
    if entry is None:
        base = Path.cwd() if "model" in flags.values else file.path.absolute().parent
        return [*said, _bare_package(_merge(said), base)]
    if "model" not in entry.values and name != RunPlan().model:
        raise ConfigError(f"[models.{name}] in {file.path} has no path")
    chosen = Layer({key: value for key, value in flags.values.items() if key != "model"}, flags.where)
    return [file.defaults, entry, chosen]


def _bare_package(said: Layer, base: Path) -> Layer:
    """A word that is no name of a model may be the folder of a package, whose path it then stands for."""
    folder = base / said.values.get("model", "")
    return Layer({"model": str(folder)}) if "model" in said.values and is_package(folder) else Layer()


def _above_package(said: Layer) -> Layer:
    """What a person said, over what the package of the model says; these are no more than better defaults."""
    package = package_layer(said.values.get("model", RunPlan().model), said.values.get("strategy"))
    merged = _merge([package, said])
    cuts = package.values.get("split", ())
    if cuts and said.values.get("stages") == len(cuts) + 1 and not {"split", "remote"} & set(said.values):
        merged.values["split"] = cuts  # as many stages as slices: each has its own
    return merged


def _merge(layers: list[Layer]) -> Layer:
    merged = Layer()
    for layer in layers:
        if any(name in layer.values for name in _PLACES):
            for name in _PLACES:
                merged.values.pop(name, None)
        merged.values.update(layer.values)
        merged.where.update(layer.where)
    return merged


def _put(plain: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        plain = plain[part]
    plain[path[-1]] = value


def _topology(plan: TopologyPlan, said: Layer) -> TopologyPlan:
    """Settle the number of stages, and read the token files of remote ones."""
    values = asdict(plan)
    if plan.use_nodes and "remote" in said.values:
        both = f"{said.where['remote']} and {said.where['use_nodes']}"
        raise ConfigError(f"{both} exclude each other: both say where the layers run")
    if plan.use_nodes and "stages" not in said.values:
        values["stages"] = 0  # the planner decides
    if plan.remote:
        for name in ("stages", "split"):
            if name in said.values:
                other = f"{said.where['remote']} names running stages, which know their layers"
                raise ConfigError(f"{said.where[name]} cannot be used here: {other}")
        values["remote"] = [asdict(_with_token(address)) for address in plan.remote]
        values["stages"] = len(plan.remote) + 1
    elif plan.split:
        values["stages"] = len(plan.split) + 1
        if "stages" in said.values and plan.stages != values["stages"]:
            cuts = f"{said.where['split']} has {len(plan.split)} cuts, so {values['stages']} stages"
            raise ConfigError(f"{said.where['stages']} is {plan.stages}, but {cuts}")
    return from_plain(TopologyPlan, values, "topology")


def with_tokens(nodes: Iterable[NodeSettings]) -> tuple[NodeSettings, ...]:
    """Nodes with the token that each of them wants. Raises ConfigError."""
    return tuple(_with_token(node) for node in nodes)


def _with_token(place: Place) -> Place:
    """The token of a stage or node: from its file, else from the environment."""
    if place.token_file:
        return replace(place, token=read_token(Path(place.token_file)))
    return replace(place, token=os.environ.get(TOKEN_VARIABLE, ""))


def read_token(path: Path) -> str:
    """The first line of a token file; raises ConfigError when there is none."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {reason_of(error)}") from error
    if len(lines) != 1:
        raise ConfigError(f"the token file {path} must hold one word, the token")
    return lines[0]


def _node_table(node: NodeSettings) -> dict[str, Any]:
    values = {key: getattr(node, key) for key in NODE_KEYS}
    return {key: value for key, value in values.items() if value != ""}


def _toml_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, StageAddress):
        rest = {"token_file": value.token_file, "standby": list(value.standby)}
        return {"url": value.url, **{key: item for key, item in rest.items() if item}}
    if isinstance(value, tuple):
        return [_toml_value(item) for item in value]
    return value
