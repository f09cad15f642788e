"""What a new package says of speculation: every strategy that its model can run, with settings for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.config.manifest import ExtensionPolicy, Proposer, SpeculativeDecoding, Strategy, WindowPolicy
from engine.config.package_speculation import COMPOSITE, NATIVE_MTP, NGRAM_TYPES, type_of_strategy
from engine.config.plan import STRATEGIES, SpeculationPlan
from engine.config.rules import check_speculation, fit_unsaid
from engine.errors import UsageError
from engine.model.file import ModelFile
from engine.model.rebase import nextn_obstacle, whole_rules

MTP = "mtp"

# Settings that have no place in a proposer or strategy; written only where they were said.
_FURTHER = ("draft_min", "reject_cooldown_tokens", "suppress_cooldown_draft_limit")


def describe_speculation(model: ModelFile, values: Mapping[str, Any]) -> SpeculativeDecoding | None:
    """Proposers and strategies of a model; None for one whose state cannot be rolled back.

    `values` holds settings of the table `speculative` by name; the rest are the defaults. Raises UsageError
    for a strategy that the model cannot run, and ConfigError for values that do not go together.
    """
    if not whole_rules(model).can_rollback:
        return None
    has_mtp = not nextn_obstacle(model)
    names = [name for name in STRATEGIES if type_of_strategy(name) and (has_mtp or "mtp" not in name)]
    default = values.get("strategy", SpeculationPlan().strategy)
    if default not in names:
        raise UsageError(
            f"{default} cannot be the default strategy of a package of {model.name}",
            hint=f"use one of {', '.join(names)}",
        )
    proposers = {name: _ngram(_plan(name, values), name) for name in NGRAM_TYPES}
    if has_mtp:
        layers = tuple(range(model.n_layers, model.n_layers + model.n_nextn))
        depth = _plan(MTP, values).draft_max
        proposers = {MTP: Proposer(NATIVE_MTP, prediction_depth=depth, layer_indices=layers), **proposers}
    return SpeculativeDecoding(
        default=default,
        proposers=proposers,
        strategies={name: _strategy(name, _plan(name, values), has_mtp) for name in names},
        settings={name: values[name] for name in _FURTHER if name in values},
    )


def _plan(strategy: str, values: Mapping[str, Any]) -> SpeculationPlan:
    """The settings with which a strategy runs; bounds that only fit another one are brought into range."""
    plan = fit_unsaid(
        replace(SpeculationPlan(), **{**values, "strategy": strategy}), _fixed(strategy, values)
    )
    check_speculation(plan)
    return plan


def _fixed(strategy: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was said for this strategy: n-gram bounds are meant for the default one."""
    if strategy == values.get("strategy"):
        return values
    return {name: value for name, value in values.items() if name not in ("ngram_min", "ngram_max")}


def _ngram(plan: SpeculationPlan, kind: str) -> Proposer:
    return Proposer(
        kind,
        ngram_min=plan.ngram_min,
        ngram_max=plan.ngram_max,
        max_proposal_tokens=max(plan.ngram_max_proposal, plan.ngram_min),
        history_scope="request",
    )


def _strategy(name: str, plan: SpeculationPlan, has_mtp: bool) -> Strategy:
    window = WindowPolicy(
        default=plan.window_policy,
        min_window=plan.window_min,
        max_window=plan.window_max,
        pipeline_depth=plan.pipeline_depth,
    )
    kind = type_of_strategy(name)
    if kind in (NATIVE_MTP, *NGRAM_TYPES):
        return Strategy(kind, proposer=MTP if kind == NATIVE_MTP else kind, window_policy=window)
    extension = ExtensionPolicy(plan.extension_initial, plan.extension_max, plan.tail_backoff_proposals)
    return Strategy(
        kind,
        primary=MTP if has_mtp else None,
        extender="ngram-" + name.removeprefix("mtp-") if kind == COMPOSITE else "ngram-suffix",
        extension_policy=extension if has_mtp else None,
        window_policy=window,
    )
