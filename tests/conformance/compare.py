"""Whole model against split: the same tokens through one stage and through several, logits side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.compute.context import ContextRequest, LlamaContext, Outputs
from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.model.file import ModelFile
from engine.model.rebase import plan_slice
from engine.model.slices import SliceFile, ensure_slice, whole_model

OPTIONS = ComputeOptions(context=640, batch_rows=128)

PREFILL = [(start, 128) for start in range(0, 512, 128)]
WINDOWS = [(512, 9), (521, 1), (522, 4), (526, 1)]
"""(start, rows) of each call; of the prefill only the last row is compared."""

N_TOKENS = 527


@dataclass(frozen=True)
class Outcome:
    """Logits of the compared rows, and those of the NextN block (one row a call), if it can draft."""

    logits: NDArray[np.float32]
    drafts: NDArray[np.float32] | None


def tokens_of(model: ModelFile) -> list[int]:
    """A fixed text; one token more than is computed, for the NextN block looks one ahead."""
    return [int(token) for token in np.random.default_rng(1).integers(0, model.n_vocab, N_TOKENS + 1)]


def run(
    model: ModelFile,
    slices: Sequence[SliceFile],
    tokens: Sequence[int],
    options: Sequence[ComputeOptions] = (),
) -> Outcome:
    """The tokens through a chain of stages, each with its own `options` (default: the same for all)."""
    options = options or [OPTIONS] * len(slices)
    with ExitStack() as opened:
        embeddings = EmbeddingTable(model, slices[0].rules.input_scale)
        stages = []
        for part, chosen in zip(slices, options, strict=True):
            first = part.is_first and not part.whole
            stages.append(Stage(part, chosen, embeddings=embeddings if first else None))
            opened.callback(stages[-1].close)
        last = stages[-1]
        drafter = None
        if last.slice.native_mtp:
            last.keep_hidden_rows(True)
            drafter = LlamaContext(last.model, ContextRequest(options[-1], mtp_of=last.context))
            opened.callback(drafter.close)
        logits, drafts = [], []
        for start, rows in [*PREFILL, *WINDOWS]:
            in_prefill = (start, rows) in PREFILL
            marked: Literal["all", "last"] = "last" if in_prefill else "all"
            hidden = stages[0].forward(0, start, tokens=tokens[start : start + rows], logits=marked)
            for stage in stages[1:]:
                hidden = stage.forward(0, start, hidden=hidden, logits=marked)
            logits += [last.logits(row).copy() for row in range(rows - 1 if in_prefill else 0, rows)]
            if drafter is not None:
                # The row at position p + 1 pairs token p + 1 with the hidden state of position p.
                ahead = tokens[start + 1 : start + rows + 1]
                states = last.hidden_rows().copy()
                drafter.decode(0, start + 1, rows, Outputs.LAST, tokens=ahead, hidden=states)
                drafts.append(drafter.logits()[0].copy())
        return Outcome(np.stack(logits), np.stack(drafts) if drafts else None)


def run_whole(model: ModelFile, tokens: Sequence[int], options: ComputeOptions = OPTIONS) -> Outcome:
    """The tokens through one stage, which drafts only if the last stage of a split does.

    A context that gives NextN rows does not crop its last layer to the marked rows, and llama.cpp multiplies
    one row by a float matrix in another order than several.
    """
    drafts = plan_slice(model, 0, model.n_layers).native_mtp
    return run(model, [replace(whole_model(model), native_mtp=drafts)], tokens, [options])


def cut(model: ModelFile, cuts: Sequence[int], cache: Path) -> list[SliceFile]:
    """Slices of a model, cut before each layer of `cuts`."""
    edges = [0, *cuts, model.n_layers]
    return [ensure_slice(model, a, b, cache_dir=cache) for a, b in pairwise(edges)]
