"""The manifest of a package as a layer of settings: above the defaults, below everything said by a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.layers import Layer
from engine.config.manifest import MANIFEST_NAME, Manifest, SpeculativeDecoding, is_package
from engine.config.package_rules import read_manifest
from engine.config.package_speculation import NATIVE_MTP


def package_layer(model: str, said_strategy: str | None) -> Layer:
    """The settings of the package that `model` names; nothing if it names none. Raises PackageError.

    What a package says depends on the strategy: `said_strategy`, or the package's default.
    """
    directory = Path(model)
    if not is_package(directory):
        return Layer()
    manifest = read_manifest(directory)
    values = {**_places(manifest), **speculation_values(manifest, said_strategy)}
    return Layer(values, {name: f"{name} of {directory / MANIFEST_NAME}" for name in values})


def _places(manifest: Manifest) -> dict[str, Any]:
    """One local stage for each slice."""
    return {"split": manifest.cuts} if manifest.cuts else {"stages": 1}


def speculation_values(manifest: Manifest, said_strategy: str | None) -> dict[str, Any]:
    """Values of the table `speculative`, by name."""
    speculative = manifest.generation.speculative_decoding
    if speculative is None:
        return {}
    name = said_strategy or speculative.default
    return {
        "strategy": speculative.default,
        **_strategy_values(speculative, name),
        **speculative.settings,
    }


def _strategy_values(speculative: SpeculativeDecoding, name: str) -> dict[str, Any]:
    strategy = speculative.strategies.get(name)
    if strategy is None:
        return {}
    values: dict[str, Any] = {}
    for reference in (strategy.proposer, strategy.primary, strategy.extender):
        proposer = speculative.proposers.get(reference or "")
        if proposer is None:
            continue
        if proposer.type == NATIVE_MTP:
            values["draft_max"] = proposer.prediction_depth
        else:
            values["ngram_min"] = proposer.ngram_min
            values["ngram_max"] = proposer.ngram_max
            values["ngram_max_proposal"] = proposer.max_proposal_tokens
    if (extension := strategy.extension_policy) is not None:
        values["extension_initial"] = extension.initial_tokens
        values["extension_max"] = extension.max_tokens
        values["tail_backoff_proposals"] = extension.tail_backoff_proposals
    if (window := strategy.window_policy) is not None:
        values["window_policy"] = window.default
        values["window_min"] = window.min_window
        values["window_max"] = window.max_window
        values["pipeline_depth"] = window.pipeline_depth
    return {key: value for key, value in values.items() if value is not None}
