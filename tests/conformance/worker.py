"""A process that makes tiny models and compares splits of them: `python -m tests.conformance.worker DIR`.

llama.cpp ends the process on a failed assertion, so nothing that may fail runs in the process of the tests.
Jobs come as JSON lines on standard input, results go out as JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import SkippyError
from engine.model.file import ModelFile
from engine.model.rebase import SlicePlan, plan_slice
from engine.model.slices import SliceFile, open_slice, slice_content
from tests.conformance.cases import MODELS
from tests.conformance.compare import Outcome, cut, run, run_whole, tokens_of


def _without_key(name: str) -> Callable[[ModelFile, SlicePlan], SlicePlan]:
    """A slicer that copies this key of the source instead of rebasing it."""

    def spoil(model: ModelFile, plan: SlicePlan) -> SlicePlan:
        key = f"{model.architecture}.{name}"
        entries = {other: entry for other, entry in plan.set_metadata.items() if other != key}
        return replace(plan, set_metadata=entries, drop_metadata=plan.drop_metadata - {key})

    return spoil


def _without_pads(model: ModelFile, plan: SlicePlan) -> SlicePlan:
    """A slicer that knows no identity layers (they stand in front)."""
    blocks = tuple(block for block in plan.blocks if not block.identity)
    n_pads = len(plan.blocks) - len(blocks)
    entries = {
        key: (value[n_pads:] if isinstance(value, list) and len(value) == len(plan.blocks) else value, kind)
        for key, (value, kind) in plan.set_metadata.items()
    }
    count = f"{model.architecture}.block_count"
    entries[count] = (len(blocks), entries[count][1])
    rules = replace(plan.rules, last_block=plan.rules.last_block - n_pads)
    return replace(plan, blocks=blocks, set_metadata=entries, rules=rules)


def _without_scale(model: ModelFile, plan: SlicePlan) -> SlicePlan:
    """A first stage that gives llama.cpp the rows of the token embedding as they are."""
    return replace(plan, rules=replace(plan.rules, input_scale=1.0))


def _without_input_tensor(model: ModelFile, plan: SlicePlan) -> SlicePlan:
    """A stage that gives llama.cpp hidden states as a batch."""
    return replace(plan, rules=replace(plan.rules, input_tensor=""))


def _spoiled(spoil: str) -> Callable[[ModelFile, SlicePlan], SlicePlan]:
    known = {"pads": _without_pads, "scale": _without_scale, "input tensor": _without_input_tensor}
    return known.get(spoil) or _without_key(spoil)


class Bench:
    """The models made so far, and what they compute as a whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, tuple[ModelFile, list[int], Outcome]] = {}

    def compare(self, name: str, cuts: list[int], spoil: str = "") -> dict[str, Any]:
        """Largest differences of logits between the whole model and its split, beside what could differ."""
        model, tokens, whole = self._whole(name)
        slices = self._spoil(model, cuts, spoil) if spoil else cut(model, cuts, self.directory)
        split = run(model, slices, tokens)
        drafts = None
        if whole.drafts is not None and split.drafts is not None:
            drafts = float(np.abs(whole.drafts - split.drafts).max())
        return {
            "difference": float(np.abs(whole.logits - split.logits).max()),
            "draft_difference": drafts,
            "largest": float(np.abs(whole.logits).max()),
            "spread": float(whole.logits.std(axis=1).min()),
            "native_mtp": slices[-1].native_mtp,
        }

    def _whole(self, name: str) -> tuple[ModelFile, list[int], Outcome]:
        if name not in self._known:
            path = self.directory / f"{name}.gguf"
            if not path.exists():
                MODELS[name].write(path)
            model = ModelFile.open(path)
            tokens = tokens_of(model)
            self._known = {name: (model, tokens, run_whole(model, tokens))}
        return self._known[name]

    def _spoil(self, model: ModelFile, cuts: list[int], spoil: str) -> list[SliceFile]:
        edges = [0, *cuts, model.n_layers]
        slices = []
        for first, end in pairwise(edges):
            plan = _spoiled(spoil)(model, plan_slice(model, first, end))
            path = self.directory / f"{model.name}-{first}-{end}-spoiled.gguf"
            with path.open("wb") as file:
                slice_content(model, plan, first, end).write(file)
            slices.append(open_slice(path))
        return slices


def main() -> None:
    bench = Bench(Path(sys.argv[1]))
    for line in sys.stdin:
        try:
            result = bench.compare(**json.loads(line))
        except SkippyError as error:
            result = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
