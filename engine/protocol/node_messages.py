"""Messages between a coordinator and a node, a machine that waits for layers. Bytes: docs/protocol.md.

The coordinator asks one question at a time on a `node` link, and the node answers it before the next one.
Sizes are bytes; hashes are SHA-256 in hex. A `probe` link only measures the way from its opener to a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Describe:
    """What is this machine, and what does it have? Answered by `NodeInfo`."""


@dataclass(frozen=True, slots=True)
class HeldSlice:
    """Layers `first` to `end` (not included) of a model that a node can load at once."""

    fingerprint: str  # of the whole model
    first: int
    end: int
    sha256: str  # of the file


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as it is now."""

    host: str  # what the machine calls itself
    cores: int
    free_memory: int
    free_disk: int  # where slices are kept
    accepts_slices: bool  # it may be sent slices that it has no copy of
    slices: tuple[HeldSlice, ...] = ()
    models: tuple[str, ...] = ()  # fingerprints of whole models in its folders


@dataclass(frozen=True, slots=True)
class Measure:
    """How fast would this machine compute the layers of a model? Answered by `Measured`.

    `header` is a GGUF file without the data of its tensors and without its vocabulary.
    """

    threads: int  # 0: as many as the node would use
    header: bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """`costs` is the JSON of a `ComputeCosts` (engine/planning/profiles.py), timed with `threads` threads."""

    threads: int
    costs: str


@dataclass(frozen=True, slots=True)
class ProbePeer:
    """How far is it from this node to another? Answered by `PeerProbed`. The token is never logged."""

    url: str
    token: str = field(default="", repr=False)
    emulate_rtt_ms: float = 0.0  # delay the probe like every link of the run that is planned
    emulate_mbps: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerProbed:
    """The way to `url`: round trip, and megabits a second in the direction of the activations."""

    url: str
    rtt_ms: float
    mbps: float


@dataclass(frozen=True, slots=True)
class Assign:
    """Serve layers `first` to `end` (not included) of a model. Answered by `Assigned`, after `AssignProgress`
    and, if the slice has to come over the link, `SliceWanted`.

    Asked again, it makes sure that the stage still answers, and starts it again if not.
    """

    fingerprint: str  # of the whole model
    model_name: str
    first: int
    end: int
    sha256: str  # of the slice
    size: int  # of the slice
    offered: bool  # the coordinator would send the slice
    stage_index: int  # its place in the chain, for messages
    threads: int = 0  # 0: as many as the node would use
    exact: bool = False
    context: int = 4096
    sequences: int = 1
    batch_rows: int = 128


@dataclass(frozen=True, slots=True)
class AssignProgress:
    """How far an assignment is. `state`: receiving | checking | cutting | loading; `total` 0 if unknown."""

    state: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class SliceWanted:
    """The node has `offset` bytes of the slice and takes the rest in `SliceChunk`s."""

    offset: int


@dataclass(frozen=True, slots=True)
class SliceChunk:
    """A piece of the slice, the one that follows what was sent before."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Assigned:
    """The stage listens on `port` of the machine where the node was reached, and wants `token`.

    `source`: running | cache | model | received.
    """

    port: int
    source: str
    token: str = field(default="", repr=False)
    pid: int = 0


@dataclass(frozen=True, slots=True)
class ProbeData:
    """Bytes whose arrival is timed. The `last` of a round is answered by `ProbeEcho`."""

    last: bool
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class ProbeEcho:
    """So many bytes of `ProbeData` have come on this link."""

    received: int


NodeMessage = (
    Describe
    | NodeInfo
    | Measure
    | Measured
    | ProbePeer
    | PeerProbed
    | Assign
    | AssignProgress
    | SliceWanted
    | SliceChunk
    | Assigned
    | ProbeData
    | ProbeEcho
)
