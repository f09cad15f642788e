"""Machines and models that are not there."""

from __future__ import annotations

from collections.abc import Sequence

from engine.planning.profiles import (
    MIB,
    Cluster,
    ComputeCosts,
    Demand,
    LayerProfile,
    LinkProfile,
    ModelProfile,
    NodeProfile,
)

SMALL = Demand(context=256, batch_rows=32, prompt=64, answer=64)


def costs(slowness: float = 1.0, *, draft_us: float = 0.0) -> ComputeCosts:
    """A layer of a MiB takes a millisecond times `slowness`, two rows 1.2 times as long as one."""
    us = 1000 * slowness
    return ComputeCosts(
        layer_us=(us, 1.2 * us, 1.4 * us, 1.6 * us, 1.8 * us, 2.4 * us, 4 * us),
        head_us=(2 * us, 2.4 * us, 2.8 * us, 3.2 * us, 3.6 * us, 4.8 * us, 8 * us),
        call_us=100.0,
        prefill_us=us / 5,
        cached_us=10.0,
        cached_window_us=5.0,
        draft_us=draft_us,
    )


def node(
    name: str, free_mib: float, slowness: float = 1.0, *, own: bool = False, draft_us: float = 0.0
) -> NodeProfile:
    return NodeProfile(
        name,
        round(free_mib * MIB),
        costs(slowness, draft_us=draft_us),
        url="" if own else f"ws://{name}:9555",
        own=own,
        message_us=500.0,
    )


def model(
    sizes: Sequence[float], *, cuts: Sequence[int] | None = None, native_mtp: bool = False
) -> ModelProfile:
    """Layers of so many MiB each."""
    n_bytes = [round(mib * MIB) for mib in sizes]
    layers = tuple(LayerProfile(weight_bytes=size, read_bytes=size, kv_bytes=256) for size in n_bytes)
    return ModelProfile(
        name="paper",
        fingerprint="0" * 32,
        layers=layers,
        cuts=tuple(range(1, len(layers)) if cuts is None else cuts),
        head_bytes=MIB,
        row_bytes=4096,
        native_mtp=native_mtp,
    )


def cluster(nodes: Sequence[NodeProfile], rtt_ms: float, links: Sequence[LinkProfile] = ()) -> Cluster:
    return Cluster(tuple(nodes), tuple(links), rtt_ms)
