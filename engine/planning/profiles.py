"""What a placement is planned from: the machines, the links between them, and the model.

Plain data, without how it was measured, so that it can be sent, kept, or written by hand.
`to_plain` gives what `orjson.dumps` and `tomli_w.dumps` take; `from_plain` of `engine.config.plain` reads it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from engine.errors import ConfigError

WINDOW_ROWS = (1, 2, 3, 4, 5, 8, 16)
"""The numbers of rows for which a node's speed is measured. Those of windows with up to four drafts are all
among them: matrix products go by tiles of rows, so that three rows can take longer than four."""

LOOP_US, MESSAGE_US = 900.0, 1250.0
"""What the coordinator spends on a window, and what every further process does besides computing, in
microseconds: tests/bench/predictions.py on one core for each process."""

MIB = 1 << 20
ByRows = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ComputeCosts:
    """How fast a machine computes a model's layers, in microseconds. Layers of one model cost in proportion
    to the bytes that a row reads of them (`LayerProfile.read_bytes`), so one figure per MiB does for all.

    The tables are for windows of `WINDOW_ROWS` rows, the whole window.
    """

    layer_us: ByRows  # per MiB that a row reads
    head_us: ByRows  # final norm and head
    call_us: float  # of a call, however many layers and rows
    prefill_us: float  # per MiB and row, in a prefill chunk
    cached_us: float = 0.0  # of a single row, per MiB of keys and values that it attends to
    cached_window_us: float = 0.0  # the same for each row of a larger window
    draft_us: float = 0.0  # one draft of the native MTP head; 0 where there is none
    fingerprint: str = ""  # of the model that was timed; "" for any

    def __post_init__(self) -> None:
        for name, by_rows in (("layer_us", self.layer_us), ("head_us", self.head_us)):
            if len(by_rows) != len(WINDOW_ROWS):
                counts = ", ".join(map(str, WINDOW_ROWS))
                raise ConfigError(f"{name} must hold {len(WINDOW_ROWS)} times, for {counts} rows")
        cached = (self.cached_us, self.cached_window_us)
        times = (*self.layer_us, *self.head_us, self.call_us, self.prefill_us, *cached, self.draft_us)
        if not all(0 <= us < math.inf for us in times):
            raise ConfigError("the times of a node must be finite and not below 0")


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A machine that can hold one stage."""

    name: str
    free_bytes: int  # that a stage may take
    compute: ComputeCosts
    url: str = ""  # where it waits for layers; "" on the coordinator's own machine
    threads: int = 1  # with which it was timed
    own: bool = False  # the coordinator's machine: no hop to the first stage
    message_us: float = -1.0  # what a window costs a process besides computing; below 0: the usual

    def __post_init__(self) -> None:
        if self.free_bytes < 0 or self.threads < 1 or not self.message_us < math.inf:
            raise ConfigError(f"node {self.name}: free_bytes, threads or message_us is out of range")

    @property
    def handling_ms(self) -> float:
        """What a window costs this machine besides computing, in milliseconds."""
        usual = LOOP_US if self.own else MESSAGE_US
        return (usual if self.message_us < 0 else self.message_us) / 1000


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """The way from one machine to another, as the sender has measured it."""

    sender: str  # names of nodes
    receiver: str
    rtt_ms: float  # there and back
    mbps: float = 0.0  # megabits a second; 0: no limit

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_ms < math.inf or not 0 <= self.mbps < math.inf:
            raise ConfigError(f"link {self.sender} to {self.receiver}: rtt_ms and mbps must be 0 or more")

    def one_way_ms(self, n_bytes: float) -> float:
        """Milliseconds until a message of `n_bytes` has arrived: half the round trip, and its time on the
        line."""
        return self.rtt_ms / 2 + (n_bytes * 8e-3 / self.mbps if self.mbps else 0.0)


@dataclass(frozen=True)
class Cluster:
    """All machines, exactly one of them the coordinator's own, and the links between them.

    Pairs that `links` does not have are taken to be as far apart as the other direction, then as `rtt_ms` and
    `mbps` say.
    """

    nodes: tuple[NodeProfile, ...]
    links: tuple[LinkProfile, ...] = ()
    rtt_ms: float = 0.0
    mbps: float = 0.0

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        for name in names:
            if not name or names.count(name) > 1:
                raise ConfigError(f"every node needs a name of its own; {name!r} has none")
        if sum(node.own for node in self.nodes) != 1:
            raise ConfigError("exactly one node must have own = true: the machine that asks")
        for link in self.links:
            for name in (link.sender, link.receiver):
                if name not in names:
                    raise ConfigError(f"there is a link of {name!r}, which is no node")

    @property
    def own(self) -> NodeProfile:
        """The coordinator's machine."""
        return next(node for node in self.nodes if node.own)

    def link(self, sender: str, receiver: str) -> LinkProfile:
        """The link between two nodes by name; a node reaches itself at once."""
        if sender == receiver:
            return LinkProfile(sender, receiver, rtt_ms=0.0)
        known = self._by_pair
        measured = known.get((sender, receiver)) or known.get((receiver, sender))
        return measured or LinkProfile(sender, receiver, self.rtt_ms, self.mbps)

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], LinkProfile]:
        return {(link.sender, link.receiver): link for link in self.links}


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer: its weights in memory, what a row reads of them (a share of the experts), what a token takes
    in the cache, and what a sequence takes there however long it is (recurrent layers), in bytes."""

    weight_bytes: int
    read_bytes: int
    kv_bytes: int
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What planning needs to know of a model, from its header."""

    name: str
    fingerprint: str
    layers: tuple[LayerProfile, ...]
    cuts: tuple[int, ...]  # layers before which the model can be cut
    head_bytes: int  # that the last stage holds besides its layers: head, NextN block
    row_bytes: int  # activations of a row on the wire
    head_kv_bytes: int = 0  # that a token takes in the caches of the NextN block
    scratch_bytes: int = 0  # intermediate results of a row, on any stage
    logits_bytes: int = 0  # logits of a row, on the last stage
    native_mtp: bool = False

    @property
    def n_layers(self) -> int:
        return len(self.layers)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a placement has to hold and to serve."""

    context: int = 4096  # tokens per sequence
    sequences: int = 1
    batch_rows: int = 128  # most rows of a message
    prompt: int = 256  # tokens of the prompt whose time to the first token is predicted
    answer: int = 128  # tokens of the answer: times per token are those half-way


@dataclass(frozen=True, slots=True)
class LockedStage:
    """One stage of a pinned placement: layers `first` to `end` (not included) on a node, and all that is set
    for that node (`engine.config.nodes`) but its token."""

    node: str
    url: str  # "" on the coordinator's own machine
    first: int
    end: int
    token_file: str = ""  # with the token that the node wants; relative to the folder of the plan
    memory_limit_gib: float = 0.0
    allow_transfer: bool = True


@dataclass(frozen=True, slots=True)
class TopologyLock:
    """A pinned placement of one model."""

    fingerprint: str
    model: str
    stages: tuple[LockedStage, ...]


def to_plain(profile: Any) -> dict[str, Any]:
    """Any of these profiles as a dictionary of plain values; tuples become lists."""
    plain: dict[str, Any] = _lists(asdict(profile))
    return plain


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_lists(item) for item in value]
    return value
