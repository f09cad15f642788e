"""Whether this machine alone would be faster than the stages of a run, from what an answer has measured.

What the engine's own layers took tells what all layers and the head would take here: as much more as a row
reads more bytes of them. Nothing is measured for that. It rather flatters the split: the cost of a call is
multiplied as well, and the drafts that this machine could make alone are not counted.
Where the planner has chosen the cuts, it has warned by itself (`engine.planning.explain`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from engine.config.plan import RunPlan
from engine.events import Notice
from engine.model.file import ModelFile
from engine.model.packages.model import PackageModel
from engine.planning.costs import StageCosts
from engine.planning.describe import describe_model, head_read_bytes, layer_bytes
from engine.planning.profiles import Demand
from engine.protocol.messages import StageInfo
from engine.stage.node_options import free_memory

ONE_MACHINE = "one-machine"

FEWEST_TOKENS = 16
"""An answer that is shorter says little about speed."""

NOTABLE, NOTABLE_MS = 0.15, 5.0
"""Share of the time per token, and milliseconds of it, that are worth a warning."""


def faster_alone(
    plan: RunPlan, model: ModelFile, stages: tuple[StageInfo, ...], own_ms: float, timings: Mapping[str, Any]
) -> Notice | None:
    """The warning for an answer with these `timings` (of its JSON result), if it is due.

    `own_ms` is what the first of the `stages` takes for a single row. Nothing is said of local stages without
    a link between them, whose price is known to be small, or where the first stage or weights are elsewhere.
    Blocks for a moment.
    """
    topology, first = plan.topology, stages[0]
    planned = topology.use_nodes and not topology.split
    linked = bool(topology.remote) or topology.use_nodes or topology.emulation.rtt_ms > 0
    split_ms = timings["tpot_ms_p50"]  # a stage that once took long says nothing
    if planned or not linked or first.where or plan.compute.gpu_layers or not own_ms:
        return None
    if len(stages) < 2 or timings["predicted_n"] < FEWEST_TOKENS:
        return None
    _, read = layer_bytes(model)
    layers = read[: model.n_layers]
    alone_ms = own_ms * (sum(layers) + head_read_bytes(model)) / sum(layers[: first.end_layer])
    if split_ms - alone_ms < max(NOTABLE * split_ms, NOTABLE_MS) or not _has_room(plan, model, first):
        return None
    return Notice(
        level="warning",
        code=ONE_MACHINE,
        message=f"one machine alone is faster: this one would make about {1000 / alone_ms:.1f} tok/s, "
        f"{len(stages)} stages made {1000 / split_ms:.1f}",
        hint="--stages 1 uses this machine only",
    )


def _has_room(plan: RunPlan, model: ModelFile, first: StageInfo) -> bool:
    """Whether all of the model is here and fits into what memory is free."""
    if isinstance(model, PackageModel):
        package = model.package
        if not all(package.has(item) for item in package.manifest.slices):
            return False
    rows = first.prefill_rows
    demand = Demand(context=first.context, sequences=plan.compute.sequences, batch_rows=rows)
    needed = StageCosts(describe_model(model), demand).bytes_of(0, model.n_layers)
    return needed <= free_memory(os.getpid())
