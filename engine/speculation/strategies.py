"""From the name of a strategy to the sources it drafts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config.plan import STRATEGIES, SpeculationPlan
from engine.errors import ConfigError
from engine.speculation.acceptance import Acceptance
from engine.speculation.draft_model import DraftModel
from engine.speculation.drafter import Drafter, Joining
from engine.speculation.native_mtp import NativeMtp
from engine.speculation.ngram_cache import NgramCache
from engine.speculation.ngram_counts import LONGEST_NGRAM
from engine.speculation.ngram_match import LONGEST_MATCH, NgramProposer
from engine.speculation.ngram_resume import NgramResume
from engine.speculation.ngram_simple import NgramSimple
from engine.speculation.ngram_suffix import NgramSuffix
from engine.speculation.statistics import Statistics
from engine.speculation.types import LoopContext

SHORTEST_SUFFIX = 3


@dataclass(frozen=True, slots=True)
class Resolved:
    """The strategy that will run, and one line on why it is not the one asked for (or empty)."""

    strategy: str
    note: str = ""


def resolve_strategy(
    name: str, *, native_mtp: bool, can_rollback: bool, window_rows: int, draft_model: bool
) -> Resolved:
    """The strategy that a model and its stages allow.

    Raises ConfigError for an unknown name; everything else falls back, with a note.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}", hint=f"known are {', '.join(STRATEGIES)}")
    if name == "disabled":
        return Resolved(name)
    if not can_rollback:
        return Resolved("disabled", "speculation is off: this model keeps a state that cannot be rolled back")
    if window_rows < 2:
        return Resolved("disabled", "speculation is off: a stage allows windows of one row only")
    if name == "draft" and not draft_model:
        return Resolved("disabled", "speculation is off: strategy draft needs a draft model")
    if name == "mtp" and not native_mtp:
        return Resolved("disabled", "speculation is off: the model has no NextN layers for strategy mtp")
    if name.startswith("mtp-") and not native_mtp:
        fallback = name.replace("mtp-", "ngram-")
        return Resolved(fallback, f"strategy {fallback} instead of {name}: the model has no NextN layers")
    return Resolved(name)


def make_drafter(
    strategy: str,
    plan: SpeculationPlan,
    history: Sequence[int],
    context: LoopContext,
    statistics: Statistics,
    acceptance: Acceptance,
) -> Drafter:
    """The sources of a resolved strategy over a growing history."""
    if strategy == "disabled":
        return Drafter(plan, statistics, acceptance)
    wants_mtp = strategy in ("auto", "mtp") or strategy.startswith("mtp-")
    mtp = NativeMtp(plan, statistics) if wants_mtp and context.native_mtp else None
    text: NgramProposer | None = None
    joining: Joining = "anchored"
    if strategy == "auto":
        text, joining = NgramResume(history, _suffix(plan, history)), "best"
    elif strategy.endswith("-simple"):
        text = NgramSimple(history, size=plan.ngram_min, max_proposal=plan.ngram_max_proposal)
    elif strategy.endswith("-suffix"):
        text = _suffix(plan, history)
    elif strategy.endswith("-cache"):
        text, joining = _cache(plan, history, context), "appended"
    elif strategy == "draft":
        assert context.draft_runner is not None
        text = DraftModel(history, context.draft_runner, plan.ngram_max_proposal)
    return Drafter(plan, statistics, acceptance, mtp=mtp, text=text, joining=joining)


def _suffix(plan: SpeculationPlan, history: Sequence[int]) -> NgramSuffix:
    shortest = max(plan.ngram_min, SHORTEST_SUFFIX)
    return NgramSuffix(
        history,
        shortest=shortest,
        longest=max(shortest, min(plan.ngram_max, LONGEST_MATCH)),
        max_proposal=plan.ngram_max_proposal,
    )


def _cache(plan: SpeculationPlan, history: Sequence[int], context: LoopContext) -> NgramCache:
    return NgramCache(
        history,
        smallest=min(plan.ngram_min, LONGEST_NGRAM),
        largest=min(plan.ngram_max, LONGEST_NGRAM),
        max_proposal=plan.ngram_max_proposal,
        dynamic=context.dynamic_ngrams,
        static=context.static_ngrams,
    )
