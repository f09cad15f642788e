"""Which stage holds which layers, from the plan and from what running stages say."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass

from engine.config.plan import RunPlan
from engine.errors import HandshakeRefused, UsageError
from engine.model.file import ModelFile
from engine.protocol.messages import StageInfo


@dataclass(frozen=True, slots=True)
class Layout:
    """Layer spans in order. `own` is computed in the engine, `local` in processes it starts.

    `context` is how many tokens per sequence stages that run already allow.
    """

    own: tuple[int, int] | None
    local: tuple[tuple[int, int], ...] = ()
    threads: int = 1
    context: int = 0


def check_fingerprint(plan: RunPlan, model: ModelFile) -> None:
    """Raise HandshakeRefused if the plan is for another model."""
    wanted = plan.topology.fingerprint
    if wanted and wanted != model.fingerprint:
        raise HandshakeRefused(
            f"this run is for the model {wanted[:12]}, and {model.name} is {model.fingerprint[:12]}",
            hint="give the model that was planned for, or plan again: skippy-engine plan MODEL --lock FILE",
        )


def threads_per_stage(plan: RunPlan, stages: int) -> int:
    """The threads asked for, else the machine's cores shared among its local stages."""
    return plan.compute.threads or max(1, (os.cpu_count() or 1) // max(1, stages))


def check_split(split: tuple[int, ...], n_layers: int) -> None:
    """Raise UsageError unless `split` is a rising list of layers inside the model."""
    edges = (0, *split, n_layers)
    if any(a >= b for a, b in itertools.pairwise(edges)):
        shown = ",".join(map(str, split))
        raise UsageError(
            f"--split {shown} does not cut {n_layers} layers into stages",
            hint=f"give rising numbers between 1 and {n_layers - 1}",
        )


def local_layout(plan: RunPlan, model: ModelFile, balanced: tuple[int, ...]) -> Layout:
    """All stages on this machine: the first in the engine, the others in processes of their own."""
    split = plan.topology.split or balanced
    check_split(split, model.n_layers)
    edges = (0, *split, model.n_layers)
    spans = tuple(itertools.pairwise(edges))
    return Layout(own=spans[0], local=spans[1:], threads=threads_per_stage(plan, len(spans)))


def stage_count(plan: RunPlan, model: ModelFile) -> int:
    """How many local stages are wanted. Raises UsageError when the model has too few layers."""
    count = len(plan.topology.split) + 1 if plan.topology.split else plan.topology.stages
    if not 1 <= count <= model.n_layers:
        raise UsageError(
            f"--stages {count} is not possible: {model.name} has {model.n_layers} layers",
            hint=f"use 1 to {model.n_layers} stages",
        )
    return count


def remote_layout(plan: RunPlan, model: ModelFile, first: StageInfo) -> Layout:
    """Running stages, given by URL. The layers before the first of them are computed in the engine."""
    if first.fingerprint != model.fingerprint:
        raise HandshakeRefused(
            f"the stage at {plan.topology.remote[0].url} holds {first.model_name} "
            f"({first.fingerprint[:12]}), not {model.name} ({model.fingerprint[:12]})",
            hint="start both with the same model file",
        )
    own = (0, first.first_layer) if first.first_layer > 0 else None
    return Layout(
        own=own,
        threads=threads_per_stage(plan, 1),
        context=min(plan.compute.context, first.context),
    )
