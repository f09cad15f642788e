"""Split against whole on a GPU, chain by chain, in a process that may die: `python -m tests.gpu.chains DIR`.

Jobs come as JSON lines on standard input ({"model", "devices"}), results go out as JSON lines. A device is
`gpu` or `cpu`; the first is that of the whole model, the others those of the stages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine.compute  # noqa: F401 - before NumPy

# isort: split
import numpy as np

from engine.compute.options import ComputeOptions
from engine.errors import CutRefused, SkippyError
from engine.model.demo import DEMO, demo_model
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from tests.conformance.cases import MODELS
from tests.conformance.compare import N_TOKENS, OPTIONS, Outcome, cut, run, run_whole, tokens_of

TEXT = (
    "The lighthouse keeper climbed the spiral stairs every evening at six. He trimmed the wick, polished the "
    "great lens, and wrote the weather in a small blue book. "
)


def options_of(device: str) -> ComputeOptions:
    return replace(OPTIONS, gpu_layers=-1 if device == "gpu" else 0)


class Chains:
    """Compares chains of one model after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._model: ModelFile | None = None
        self._name = ""
        self._tokens: list[int] = []
        self._whole: dict[str, Outcome] = {}

    def compare(self, model: str, devices: Sequence[str]) -> dict[str, Any]:
        """Largest logit difference between whole and chain, and in how many rows they say the same token."""
        opened = self._open(model)
        whole = self._whole_on(devices[0])
        n_stages = len(devices) - 1
        cuts = [opened.n_layers * stage // n_stages for stage in range(1, n_stages)]
        slices = cut(opened, cuts, self._directory)
        split = run(opened, slices, self._tokens, [options_of(device) for device in devices[1:]])
        found = {
            "difference": float(np.abs(whole.logits - split.logits).max()),
            "spread": float(whole.logits.std(axis=1).min()),
            "same_token": float((whole.logits.argmax(1) == split.logits.argmax(1)).mean()),
        }
        if whole.drafts is not None and split.drafts is not None:
            found["draft_difference"] = float(np.abs(whole.drafts - split.drafts).max())
        return found

    def _open(self, name: str) -> ModelFile:
        if self._model is None or name != self._name:
            self._name, self._whole = name, {}
            if name == DEMO:
                self._model = ModelFile.open(demo_model())
                with Tokenizer(self._model.path) as tokenizer:
                    self._tokens = tokenizer.encode(TEXT * 30, special=False)[: N_TOKENS + 1]
            else:
                path = self._directory / f"{name}.gguf"
                MODELS[name].write(path)
                self._model = ModelFile.open(path)
                self._tokens = tokens_of(self._model)
        return self._model

    def _whole_on(self, device: str) -> Outcome:
        assert self._model is not None
        if device not in self._whole:
            self._whole[device] = run_whole(self._model, self._tokens, options_of(device))
        return self._whole[device]


def main() -> None:
    chains = Chains(Path(sys.argv[1]))
    for line in sys.stdin:
        try:
            result = chains.compare(**json.loads(line))
        except CutRefused as error:
            result = {"refused": str(error)}
        except SkippyError as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
