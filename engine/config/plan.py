"""The resolved plan of a run: frozen, typed, made once at start and shared by every part.

Nothing in the hot path reads a file, a flag or the environment. Precedence when it is made: flag > TOML >
package > default (`engine.config.resolve`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config.nodes import NodeSettings
from engine.protocol.messages import LinkEmulation, SamplingSettings, WireType

STRATEGIES = (
    "auto",
    "disabled",
    "mtp",
    "ngram-simple",
    "ngram-cache",
    "ngram-suffix",
    "mtp-simple",
    "mtp-cache",
    "mtp-suffix",
    "draft",
)
WINDOW_POLICIES = ("fixed", "adaptive", "goodput")


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """Settings of the speculative loop (docs/speculation.md). Widths count draft tokens, not rows."""

    strategy: str = "auto"
    window_policy: str = "goodput"
    window_min: int = 1
    window_max: int = 16
    pipeline_depth: int = 4  # a maximum
    draft_max: int = 4  # native MTP tokens per draft
    draft_min: int = 0
    reject_cooldown_tokens: int = 0
    suppress_cooldown_draft_limit: int = 0
    ngram_min: int = 3
    ngram_max: int = 32
    ngram_max_proposal: int = 48
    ngram_static_file: str = ""
    ngram_dynamic_file: str = ""
    extension_initial: int = 2
    extension_max: int = 16
    tail_backoff_proposals: int = 0
    draft_model: str = ""  # a GGUF of the same vocabulary, for strategy `draft`


@dataclass(frozen=True, slots=True)
class StageAddress:
    """A running stage, given by URL, and where the same layers are served if it is gone."""

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""  # where the token was read; shown in its place
    standby: tuple[str, ...] = ()  # URLs, tried in this order; the same token opens them


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """Where the layers run: `stages` local processes (the engine itself is the first), given addresses, or
    machines that wait for layers."""

    stages: int = 2  # 0, with `use_nodes` only: as many as are fastest
    split: tuple[int, ...] = ()  # first layers of stages 1..; empty: balanced by measured cost
    remote: tuple[StageAddress, ...] = ()  # in order; empty: all stages are local
    fingerprint: str = ""  # of the only model that may run; empty: any
    use_nodes: bool = False  # the layers go to the machines of `RunPlan.nodes`
    tls_ca: str = ""  # PEM file of the certificates to trust for wss://; empty: the system's
    wire: WireType = WireType.F32
    emulation: LinkEmulation = field(default_factory=LinkEmulation)


@dataclass(frozen=True, slots=True)
class ComputePlan:
    """How every local stage computes."""

    threads: int = 0  # 0: the machine's cores shared among its local stages
    exact: bool = False  # the batch-invariant setting
    gpu_layers: int = 0  # -1: all
    gpu_device: int = -1  # -1: layers are spread over all GPUs
    context: int = 4096  # tokens per sequence; at most what the model was trained for
    sequences: int = 1
    prefill_rows: int = 128  # rows of one prefill chunk
    slice_cache_gib: float = 100.0  # most that slices may take on the disk; 0: any number


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a request uses unless it says otherwise."""

    max_tokens: int = 512
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    stop: tuple[str, ...] = ()
    system: str = ""
    raw: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything a run needs to know."""

    model: str = "demo"
    topology: TopologyPlan = TopologyPlan()
    compute: ComputePlan = ComputePlan()
    speculation: SpeculationPlan = SpeculationPlan()
    generation: GenerationDefaults = GenerationDefaults()
    nodes: tuple[NodeSettings, ...] = ()  # machines that wait for layers; only a run that asks uses them
