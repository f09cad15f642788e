"""What is compared: llama.cpp's own loop on the whole model, and the engine in one or several stages."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from engine.bench.workloads import Suite
from engine.config.plan import RunPlan, TopologyPlan
from engine.protocol.messages import LinkEmulation

PLAIN = "disabled"


class Kind(Enum):
    """What answers."""

    WHOLE = "llama.cpp"
    WHOLE_MTP = "llama.cpp MTP"
    RPC = "llama.cpp RPC"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things compared. `threads` are those of each process."""

    kind: Kind
    threads: int
    stages: int = 1
    strategy: str = PLAIN
    rtt_ms: float = 0.0
    namespaces: bool = False  # the delay is that of packets between network namespaces, not emulated

    @property
    def name(self) -> str:
        """Unique among the arms of a run."""
        if self.kind in (Kind.WHOLE, Kind.WHOLE_MTP):
            return f"{self.kind.value}, {self.threads} thread{'s' * (self.threads > 1)}"
        if self.stages == 1:
            return "one stage" if self.strategy == PLAIN else f"one stage, {self.label}"
        what = self.kind.value if self.kind is Kind.RPC else self.label
        return f"{what}, {self.rtt_ms:g} ms{', netns' * self.namespaces}"

    @property
    def label(self) -> str:
        """The strategy, as tables and plots call it."""
        return "plain" if self.strategy == PLAIN else self.strategy

    @property
    def is_split(self) -> bool:
        return self.kind is Kind.ENGINE and self.stages > 1


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Everything that decides what is measured. `plan` is that of every engine, but for stages and delay."""

    suite: Suite
    plan: RunPlan
    strategies: tuple[str, ...]
    rtts_ms: tuple[float, ...]
    repeat: int
    max_tokens: int
    prefill_tokens: int  # length of the prompt whose prefill is timed; 0: none
    baseline: bool
    netns: str = ""  # how packets to a stage in a network namespace are delayed; empty: there is none
    rpc_library: str = ""  # llama.cpp's RPC backend; empty: its split is not measured

    def to_dict(self) -> dict[str, Any]:
        """What two parts of one run must agree on, by name."""
        compute, topology = asdict(self.plan.compute), self.plan.topology
        return {
            "suite": f"{self.suite.name} {self.suite.fingerprint}",
            "model": self.plan.model,
            "stages": topology.stages,
            "split": list(topology.split),
            "wire": topology.wire.value,
            "jitter_ms": topology.emulation.jitter_ms,
            "mbps": topology.emulation.mbps,
            **{f"compute.{name}": value for name, value in compute.items()},
            **{f"speculative.{name}": value for name, value in asdict(self.plan.speculation).items()},
            "temperature": self.plan.generation.sampling.temperature,
            "strategies": list(self.strategies),
            "rtts_ms": list(self.rtts_ms),
            "repeat": self.repeat,
            "max_tokens": self.max_tokens,
            "prefill_tokens": self.prefill_tokens,
            "baseline": self.baseline,
            "netns": self.netns,
            "rpc": bool(self.rpc_library),
        }

    def engine_plan(self, arm: Arm) -> RunPlan:
        """The plan of the engine that runs an arm."""
        own = self.plan.topology
        emulation = LinkEmulation(
            rtt_ms=arm.rtt_ms,
            jitter_ms=own.emulation.jitter_ms,
            mbps=own.emulation.mbps,
            seed=own.emulation.seed,
        )
        topology = TopologyPlan(stages=1) if arm.stages == 1 else replace(own, emulation=emulation)
        compute = replace(self.plan.compute, threads=arm.threads)
        return replace(self.plan, topology=topology, compute=compute)


def arms_of(settings: BenchSettings, *, native_mtp: bool) -> list[Arm]:
    """The arms of a run, in the order in which they take turns.

    Those of llama.cpp alone decode greedily, so there are none at another temperature.
    """
    threads, stages = settings.plan.compute.threads, settings.plan.topology.stages
    greedy = settings.plan.generation.sampling.greedy
    rtts = settings.rtts_ms if stages > 1 else (0.0,)  # one stage has no link
    arms: list[Arm] = []
    if settings.baseline:
        if greedy:
            counts = [1, 2] if (os.cpu_count() or 1) > 1 else [1]
            kinds = (Kind.WHOLE, Kind.WHOLE_MTP) if native_mtp else (Kind.WHOLE,)
            arms += [Arm(kind, count) for kind in kinds for count in counts]
        if stages > 1:
            arms.append(Arm(Kind.ENGINE, threads))
    for rtt in rtts:
        if settings.rpc_library and greedy:
            arms.append(Arm(Kind.RPC, threads, stages, rtt_ms=rtt))
        arms += [
            Arm(Kind.ENGINE, threads, stages, strategy, rtt) for strategy in (PLAIN, *settings.strategies)
        ]
        if settings.netns:
            arms.append(Arm(Kind.ENGINE, threads, stages, PLAIN, rtt, namespaces=True))
    return arms
