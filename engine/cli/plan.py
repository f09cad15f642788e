"""`skippy-engine plan`: how many stages, where, which layers, and how fast that would be."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from engine.cli.gpu import warn_without_gpu
from engine.cli.options import config_file_of, flags_of, named_nodes, pinned_nodes
from engine.config.kinds import Text
from engine.config.layers import read_nodes_file
from engine.config.resolve import resolve_plan
from engine.config.tables import absolute
from engine.errors import EXIT_OK, UsageError
from engine.model.packages.source import open_model
from engine.planning.describe import describe_model
from engine.planning.emulation import read_emulated
from engine.planning.explain import explanation, plan_json, table, warnings
from engine.planning.lock import read_lock, write_lock
from engine.planning.measure import compute_costs
from engine.planning.pinned import lock_of, placement_of
from engine.planning.planner import Plan, judge, plan_placement
from engine.planning.prediction import Drafting
from engine.planning.profiles import Cluster, ComputeCosts, Demand

if TYPE_CHECKING:
    from engine.config.nodes import NodeSettings
    from engine.config.plan import RunPlan
    from engine.model.file import ModelFile


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the plan. Raises SkippyError: nothing fits, a node or a file is wrong."""
    flags = {**flags_of(arguments), "model": arguments.model}
    run = resolve_plan(flags, config_file_of(arguments.config), _nodes(arguments))
    model = open_model(run.model)
    plan = _plan(arguments, run, model)
    if arguments.lock is not None:
        write_lock(lock_of(plan, run.nodes), Path(arguments.lock).expanduser())
    if arguments.json:
        print(orjson.dumps(plan_json(plan)).decode())
    else:
        print("\n".join([*table(plan), "", *explanation(plan)]))
    for warning in warnings(plan):
        print(f"skippy-engine: warning: {warning}", file=sys.stderr)
    warn_without_gpu(run.compute.gpu_layers)
    return EXIT_OK


def _nodes(arguments: argparse.Namespace) -> tuple[NodeSettings, ...]:
    if arguments.nodes is not None:
        if arguments.node:
            raise UsageError("--node and --nodes exclude each other", hint="name all nodes in one of them")
        return read_nodes_file(Path(arguments.nodes).expanduser())
    token_file = absolute(Text(is_file=True), arguments.token_file or "", Path.cwd())
    if arguments.topology is not None and arguments.emulate is None and not arguments.node:
        return pinned_nodes(Path(arguments.topology).expanduser(), token_file)
    if token_file and not arguments.node:
        raise UsageError("--token-file needs --node", hint="in a file each node has a token_file of its own")
    return named_nodes(arguments.node, token_file)


def _plan(arguments: argparse.Namespace, run: RunPlan, model: ModelFile) -> Plan:
    demand = _demand(arguments, run, model)
    drafting = _drafting(arguments, run)
    profile = describe_model(model, run.topology.wire)
    cluster = _cluster(arguments, run, model)
    if arguments.topology is not None:
        placement = placement_of(read_lock(Path(arguments.topology).expanduser()), cluster, profile)
        return judge(cluster, profile, placement, demand, drafting)
    return plan_placement(
        cluster,
        profile,
        demand,
        drafting,
        stages=run.topology.stages if arguments.stages is not None else 0,
        target_ms=arguments.target_tpot_ms or 0.0,
        own_first=arguments.emulate is None,  # as in a run over real nodes
    )


def _demand(arguments: argparse.Namespace, run: RunPlan, model: ModelFile) -> Demand:
    trained = model.context_length
    return Demand(
        context=min(run.compute.context, trained) if trained else run.compute.context,
        sequences=run.compute.sequences,
        batch_rows=max(run.compute.prefill_rows, run.speculation.window_max + 1),
        prompt=arguments.prompt_tokens,
        answer=arguments.answer_tokens,
    )


def _drafting(arguments: argparse.Namespace, run: RunPlan) -> Drafting:
    strategy = run.speculation.strategy
    drafts = strategy == "auto" or strategy.startswith("mtp")
    most = run.speculation.draft_max if drafts else 0
    return Drafting(most) if arguments.acceptance is None else Drafting(most, arguments.acceptance)


def _cluster(arguments: argparse.Namespace, run: RunPlan, model: ModelFile) -> Cluster:
    threads = run.compute.threads or os.cpu_count() or 1

    def own_costs() -> ComputeCosts:
        return compute_costs(model, threads, gpu_layers=run.compute.gpu_layers)

    if arguments.emulate is not None:
        return read_emulated(Path(arguments.emulate).expanduser(), own_costs)
    if run.nodes:
        from engine.coordinator.nodes import survey

        return asyncio.run(survey(run, model, threads))
    if arguments.topology is not None:  # a pinned plan that needs nobody else
        from engine.coordinator.nodes_plan import OWN, Machine, cluster_of
        from engine.stage.node_options import free_memory

        return cluster_of([Machine(OWN, "", free_memory(), threads, own_costs())], [])
    raise UsageError("there are no nodes to plan for", hint="give --node URL, --nodes FILE or --emulate FILE")
