"""Rules between settings: those that one value alone cannot break."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from engine.config.layers import layer_of_flags
from engine.config.plan import SpeculationPlan
from engine.config.settings import SETTINGS
from engine.errors import ConfigError, UsageError

# Shortest and longest match that each kind of n-gram proposer takes (docs/speculation.md).
NGRAM_BOUNDS: Mapping[str, tuple[int, int]] = {"simple": (1, 64), "cache": (1, 4), "suffix": (3, 64)}


# (setting, setting that it must not exceed)
_PAIRS = (
    ("window_min", "window_max"),
    ("draft_min", "draft_max"),
    ("ngram_min", "ngram_max"),
    ("ngram_min", "ngram_max_proposal"),
    ("extension_initial", "extension_max"),
)


def fit_unsaid(plan: SpeculationPlan, said: Mapping[str, Any]) -> SpeculationPlan:
    """Let defaults follow what was said: `--ngram-min 40` alone needs no `--ngram-max`."""
    plan = fit_ngram_bounds(plan, said)
    for lower, upper in _PAIRS:
        low, high = getattr(plan, lower), getattr(plan, upper)
        if low > high and lower not in said:
            plan = replace(plan, **{lower: high})
        elif low > high and upper not in said:
            plan = replace(plan, **{upper: low})
    return plan


def fit_ngram_bounds(plan: SpeculationPlan, said: Mapping[str, Any]) -> SpeculationPlan:
    """Bring bounds that nobody set into the range of the strategy's n-gram proposer."""
    lowest, highest = _ngram_bounds(plan.strategy)
    values = {
        name: min(max(getattr(plan, name), lowest), highest)
        for name in ("ngram_min", "ngram_max")
        if name not in said
    }
    return replace(plan, **values)


def check_speculation(plan: SpeculationPlan, where: Callable[[str], str] = str) -> None:
    """Raise ConfigError for settings that do not go together; `where` names a setting as it was written."""
    for lower, upper in _PAIRS:
        low, high = getattr(plan, lower), getattr(plan, upper)
        if low > high:
            raise ConfigError(f"{where(lower)} is {low}: it must not exceed {where(upper)}, which is {high}")
    lowest, highest = _ngram_bounds(plan.strategy)
    for name in ("ngram_min", "ngram_max"):
        value = getattr(plan, name)
        if not lowest <= value <= highest:
            allowed = f"must be between {lowest} and {highest} for the strategy {plan.strategy}"
            raise ConfigError(f"{where(name)} {allowed}, not {value}")
    if plan.strategy == "draft" and not plan.draft_model:
        raise ConfigError(f"the strategy draft needs a draft model; set {where('draft_model')}")


def with_speculation(plan: SpeculationPlan, values: Mapping[str, Any]) -> SpeculationPlan:
    """The plan with some settings of the table `speculative` changed while it runs; raises UsageError."""
    for name in values:
        if name not in asdict(plan):
            raise UsageError(f"{name!r} is no setting of speculation that can change while the engine runs")
    layer = layer_of_flags(values)
    changed = replace(plan, **layer.values)
    if "strategy" in layer.values:
        changed = fit_ngram_bounds(changed, layer.values)
    check_speculation(changed, lambda name: SETTINGS[name].name)
    return changed


def _ngram_bounds(strategy: str) -> tuple[int, int]:
    kind = strategy.rpartition("-")[2]
    return NGRAM_BOUNDS.get(kind, (1, 64))
