"""What a manifest may say of speculation: proposers, strategies, window policies; and the codes of faults.

Strategies of a type that is not known here are for other programs and left alone, unless one is the default.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.manifest import (
    ExtensionPolicy,
    Manifest,
    Problem,
    Proposer,
    SpeculativeDecoding,
    Strategy,
    WindowPolicy,
)
from engine.config.plan import STRATEGIES, WINDOW_POLICIES
from engine.config.rules import NGRAM_BOUNDS
from engine.config.settings import SETTINGS, nearest_setting, settings_of

NATIVE_MTP = "native-mtp"
COMPOSITE = "composite"
AUTO = "auto"
NGRAM_TYPES = tuple(f"ngram-{kind}" for kind in NGRAM_BOUNDS)
STRATEGY_TYPES = (AUTO, NATIVE_MTP, *NGRAM_TYPES, COMPOSITE)

# Only who runs a model decides these; files are named on the machine that has them.
NOT_IN_PACKAGES = ("strategy", "draft_model", "ngram_static_file", "ngram_dynamic_file")


def speculation_problems(manifest: Manifest) -> Iterator[Problem]:
    """Everything wrong with `generation.speculative_decoding`."""
    speculative = manifest.generation.speculative_decoding
    if speculative is None:
        return
    yield from _default_problems(speculative)
    for name, proposer in speculative.proposers.items():
        yield from _proposer_problems(name, proposer, manifest)
    for name, strategy in speculative.strategies.items():
        yield from _strategy_problems(name, strategy, speculative)
    yield from _setting_problems(speculative)


def type_of_strategy(name: str) -> str:
    """The type that a strategy of this name has; empty if packages have no such strategy."""
    if name in NGRAM_TYPES or name == AUTO:
        return name
    if name == "mtp":
        return NATIVE_MTP
    return COMPOSITE if name.startswith("mtp-") and name in STRATEGIES else ""


def _default_problems(speculative: SpeculativeDecoding) -> Iterator[Problem]:
    name = speculative.default
    if not name.strip():
        yield Problem("empty_speculative_default", "the default strategy has no name")
    elif name not in speculative.strategies:
        message = f"the default strategy {name!r} is not among the strategies"
        yield Problem("missing_speculative_default_strategy", message)
    elif not type_of_strategy(name):
        known = ", ".join(word for word in STRATEGIES if type_of_strategy(word))
        message = f"the default strategy {name!r} is not known"
        yield Problem("unsupported_speculative_default", message, hint=f"make it one of {known}")


def _proposer_problems(name: str, proposer: Proposer, manifest: Manifest) -> Iterator[Problem]:
    if not name.strip():
        yield Problem("empty_speculative_proposer_name", "a proposer has no name")
    if proposer.type == NATIVE_MTP:
        yield from _native_mtp_problems(name, proposer, manifest)
    elif proposer.type in NGRAM_TYPES:
        yield from _ngram_problems(name, proposer)
    else:
        known = ", ".join((NATIVE_MTP, *NGRAM_TYPES))
        message = f"proposer {name!r} has the type {proposer.type!r}, not one of {known}"
        yield Problem("unsupported_speculative_proposer_type", message)


def _native_mtp_problems(name: str, proposer: Proposer, manifest: Manifest) -> Iterator[Problem]:
    depth = proposer.prediction_depth
    if depth is None or not _allowed("draft_max", depth):
        message = f"proposer {name!r} needs a prediction_depth, {SETTINGS['draft_max'].kind.allowed}"
        yield Problem("unsupported_native_mtp_prediction_depth", message)
    if not proposer.layer_indices:
        yield Problem("missing_native_mtp_layers", f"proposer {name!r} names no layer_indices")
    first = manifest.model.layers
    end = first + manifest.model.nextn_layers
    for layer in proposer.layer_indices:
        if not first <= layer < end:
            message = f"proposer {name!r} names layer {layer}, but the NextN layers are {first}:{end}"
            yield Problem("native_mtp_layer_out_of_range", message)


def _ngram_problems(name: str, proposer: Proposer) -> Iterator[Problem]:
    low, high = proposer.ngram_min or 0, proposer.ngram_max or 0
    least, most = NGRAM_BOUNDS[proposer.type.removeprefix("ngram-")]
    if not least <= low <= high:
        message = f"proposer {name!r} needs {least} <= ngram_min <= ngram_max, not {low} and {high}"
        yield Problem("invalid_ngram_proposer_window", message)
    if high > most:
        code = "unsupported_ngram_cache_max_window" if most == 4 else "unsupported_ngram_max_window"
        yield Problem(code, f"proposer {name!r} has ngram_max {high}, and {most} is the most")
    tokens = proposer.max_proposal_tokens or 0
    if not _allowed("ngram_max_proposal", tokens) or tokens < low:
        message = f"proposer {name!r} needs max_proposal_tokens of ngram_min or more, not {tokens}"
        yield Problem("invalid_ngram_proposer_max_tokens", message)
    if proposer.type == "ngram-cache" and proposer.history_scope != "request":
        message = f"proposer {name!r} has the history_scope {proposer.history_scope!r}, not 'request'"
        yield Problem("invalid_ngram_cache_history_scope", message)


def _strategy_problems(name: str, strategy: Strategy, speculative: SpeculativeDecoding) -> Iterator[Problem]:
    if not name.strip():
        yield Problem("empty_speculative_strategy_name", "a strategy has no name")
    if not strategy.type.strip():
        yield Problem("empty_speculative_strategy_type", f"strategy {name!r} has no type")
    if strategy.type not in STRATEGY_TYPES:
        return
    expected = type_of_strategy(name)
    if expected and strategy.type != expected:
        message = f"strategy {name!r} has the type {strategy.type!r}, not {expected!r}"
        yield Problem("speculative_strategy_type_mismatch", message)
    for role in ("proposer", "primary", "extender"):
        reference = getattr(strategy, role)
        if reference is not None and reference not in speculative.proposers:
            message = f"strategy {name!r} has the {role} {reference!r}, which is not among the proposers"
            yield Problem("missing_speculative_proposer", message)
    if strategy.type == COMPOSITE:
        yield from _composite_problems(name, strategy, speculative)
    elif strategy.type != AUTO:
        yield from _single_problems(name, strategy, speculative)
    if strategy.extension_policy is not None:
        yield from _extension_problems(name, strategy.extension_policy)
    if strategy.window_policy is not None:
        yield from _window_problems(name, strategy.window_policy)


def _single_problems(name: str, strategy: Strategy, speculative: SpeculativeDecoding) -> Iterator[Problem]:
    is_native = strategy.type == NATIVE_MTP
    if strategy.proposer is None:
        code = "missing_native_mtp_strategy_proposer" if is_native else "missing_ngram_strategy_proposer"
        yield Problem(code, f"strategy {name!r} names no proposer")
        return
    proposer = speculative.proposers.get(strategy.proposer)
    if proposer is not None and proposer.type != strategy.type:
        code = "native_mtp" if is_native else "ngram"
        message = f"strategy {name!r} is {strategy.type}, but its proposer is {proposer.type}"
        yield Problem(f"{code}_strategy_proposer_type_mismatch", message)


def _composite_problems(name: str, strategy: Strategy, speculative: SpeculativeDecoding) -> Iterator[Problem]:
    extender = "ngram-" + name.removeprefix("mtp-") if type_of_strategy(name) == COMPOSITE else ""
    wanted = {"primary": (NATIVE_MTP,), "extender": (extender,) if extender else NGRAM_TYPES}
    for role, types in wanted.items():
        reference = getattr(strategy, role)
        if reference is None:
            yield Problem(f"missing_composite_{role}", f"strategy {name!r} names no {role}")
            continue
        proposer = speculative.proposers.get(reference)
        if proposer is not None and proposer.type not in types:
            message = f"strategy {name!r} has a {role} of the type {proposer.type}, not {' or '.join(types)}"
            yield Problem(f"invalid_composite_{role}_type", message)


def _extension_problems(name: str, policy: ExtensionPolicy) -> Iterator[Problem]:
    tokens = (policy.initial_tokens, policy.max_tokens)
    if not (0 < tokens[0] <= tokens[1] and _allowed("extension_max", tokens[1])):
        message = (
            f"strategy {name!r} needs 1 <= initial_tokens <= max_tokens, not {tokens[0]} and {tokens[1]}"
        )
        yield Problem("invalid_extension_policy_tokens", message)
    if not _allowed("tail_backoff_proposals", policy.tail_backoff_proposals):
        message = f"strategy {name!r} has tail_backoff_proposals {policy.tail_backoff_proposals}"
        yield Problem("invalid_extension_policy_backoff", message)


def _window_problems(name: str, policy: WindowPolicy) -> Iterator[Problem]:
    low, high, initial = policy.min_window, policy.max_window, policy.initial_window
    where = f"the window_policy of strategy {name!r}"
    if not policy.default.strip():
        yield Problem("empty_window_policy_default", f"{where} has no default")
    elif policy.default not in WINDOW_POLICIES:
        message = f"{where} is {policy.default!r}, not one of {', '.join(WINDOW_POLICIES)}"
        yield Problem("unsupported_window_policy_default", message)
    if min(low, high) < 1 or (initial is not None and initial < 1):
        yield Problem("invalid_window_policy_zero", f"{where} has a window of less than one token")
    if low > high or not _allowed("window_max", max(high, 1)):
        allowed = SETTINGS["window_max"].kind.allowed
        message = f"{where} has min_window {low} and max_window {high}, each {allowed}, the first not above"
        yield Problem("invalid_window_policy_bounds", message)
    if initial is not None and initial >= 1 and not low <= initial <= high:
        yield Problem(
            "invalid_window_policy_initial", f"{where} has initial_window {initial}, not {low}..{high}"
        )
    depth = policy.pipeline_depth
    if depth is not None and not _allowed("pipeline_depth", depth):
        allowed = SETTINGS["pipeline_depth"].kind.allowed
        message = f"{where} has pipeline_depth {depth}, not {allowed}"
        yield Problem("invalid_window_policy_pipeline_depth", message)


def _setting_problems(speculative: SpeculativeDecoding) -> Iterator[Problem]:
    known = {s.name: s for s in settings_of("speculative") if s.name not in NOT_IN_PACKAGES}
    for name, value in speculative.settings.items():
        if name not in known:
            message = f"settings has an unknown key {name!r}; {nearest_setting(name, known)}"
            yield Problem("unknown_speculative_setting", message)
            continue
        try:
            known[name].kind.check(value)
        except ValueError as error:
            yield Problem("invalid_speculative_setting", f"settings.{name} {error}")


def _allowed(setting: str, value: int) -> bool:
    try:
        SETTINGS[setting].kind.check(value)
    except ValueError:
        return False
    return True
