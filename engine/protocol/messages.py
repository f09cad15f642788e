"""The messages between coordinator and stages. Field by field on the wire: docs/protocol.md.

Shapes: `activations` is float32, C-contiguous, `(rows, n_embd)`, whatever the wire type; the codec converts.
Positions count tokens of a session from 0. `session` numbers are chosen by the coordinator, unique within a
lane. Times are integer microseconds unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from engine.protocol.node_messages import (
    NodeMessage,
)

if TYPE_CHECKING:  # front ends read settings from here and start faster without numpy
    import numpy as np
    from numpy.typing import NDArray

PROTOCOL_VERSION = 2

Activations: TypeAlias = "NDArray[np.float32]"


class Role(StrEnum):
    """What a connection is for; the first message settles it."""

    LANE = "lane"  # frames forward, replies may come back
    RETURN = "return"  # replies of the last stage straight to the coordinator
    CONTROL = "control"  # status questions only
    NODE = "node"  # a coordinator and a machine that waits for layers
    PROBE = "probe"  # measures the way to such a machine


class WireType(StrEnum):
    """How activations travel. Only f32 is exact."""

    F32 = "f32"
    F16 = "f16"
    Q8 = "q8"


@dataclass(frozen=True, slots=True)
class LinkEmulation:
    """Delay that the opener of a link adds to both directions, to rehearse a network."""

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    mbps: float = 0.0  # 0: unlimited
    seed: int = 0

    @property
    def active(self) -> bool:
        return self.rtt_ms > 0 or self.jitter_ms > 0 or self.mbps > 0


@dataclass(frozen=True, slots=True)
class Hop:
    """Where a further stage listens. The token is never logged."""

    url: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class StageInfo:
    """What a stage is and what it allows."""

    first_layer: int
    end_layer: int
    n_layers: int  # of the whole model, without NextN blocks
    architecture: str
    model_name: str
    fingerprint: str  # of the whole model
    n_embd: int
    context: int  # tokens per sequence
    sequences: int
    window_rows: int  # most rows of one VerifyWindow
    prefill_rows: int  # most rows of one Prefill
    native_mtp: bool  # drafts can be asked for (last stage only)
    can_rollback: bool  # False: speculation must stay off (recurrent state)
    threads: int
    exact: bool  # rows of a window equal single rows, bit for bit
    where: str = ""  # host:port it listens on, filled in by whoever dialled it
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of the opener. A stage refuses any mismatch, naming both values."""

    role: Role
    chain: str  # random id that ties a lane and its return link together
    fingerprint: str = ""
    architecture: str = ""
    n_embd: int = 0
    n_layers: int = 0
    first_layer: int = 0  # the layer that this stage must begin with
    stage_index: int = 1
    wire: WireType = WireType.F32
    window_rows: int = 1  # most rows the coordinator will put in one window
    prefill_rows: int = 1
    context: int = 0
    sequences: int = 1
    route: tuple[Hop, ...] = ()  # the stages after this one
    emulation: LinkEmulation = LinkEmulation()


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`: this stage and, on a lane, every stage after it."""

    stages: tuple[StageInfo, ...]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How tokens are drawn. The default is greedy.

    Random numbers depend on (seed, position) only, so the same seed gives the same text at every window
    width, depth and strategy.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # -1: whole context
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    grammar: str = ""  # GBNF; empty: none

    @property
    def greedy(self) -> bool:
        """True when the next token is the plain argmax: the fast path without a sampler."""
        return (
            self.temperature <= 0
            and self.repeat_penalty == 1.0
            and self.presence_penalty == 0
            and self.frequency_penalty == 0
            and not self.logit_bias
            and not self.grammar
        )


@dataclass(frozen=True, slots=True)
class ConfigureGeneration:
    """Before prefill: sets the sampler of the last stage for the answer that follows."""

    session: int
    sampling: SamplingSettings = SamplingSettings()
    prompt_length: int = 0
    strategy: str = "disabled"


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """A chunk of the prompt. Chunks flow down the stages without waiting for each other.

    `next_token` is the token after the last one of the chunk: the MTP row of the last position needs it.
    """

    session: int
    start: int
    tokens: tuple[int, ...]
    next_token: int
    final: bool = False
    activations: Activations | None = None
    times: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The last stage has taken a chunk up to position `end` (exclusive): one credit back."""

    session: int
    end: int
    times: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTime:
    """What one stage spent on one window."""

    stage: int
    queue_us: int  # from arrival to the start of compute
    compute_us: int
    kv_tokens: int = 0  # tokens in the cache of the session afterwards


@dataclass(frozen=True, slots=True, eq=False)
class VerifyWindow:
    """Rows to run at `start`; a plain decode step is a window of one row.

    `draft_budget` 0 tells the last stage not to draft. With `draft_later` it answers first and drafts then:
    the draft is a message of its own, unless the window only confirmed the draft before. A `stale` window is
    passed on, uncomputed and without activations, so that the replies of a session stay in window order.
    `last_only` marks the end of a prompt: up to `prefill_rows` rows of which only the last is predicted, and
    answered as a window of that one row.
    """

    session: int
    window: int
    epoch: int
    start: int
    tokens: tuple[int, ...]
    draft_budget: int = 0
    stale: bool = False
    activations: Activations | None = None
    times: tuple[StageTime, ...] = ()
    last_only: bool = False
    draft_later: bool = False

    @property
    def predicted(self) -> tuple[int, int]:
        """Position of the first predicted row, and how many are predicted."""
        rows = len(self.tokens)
        return (self.start + rows - 1, 1) if self.last_only else (self.start, rows)


@dataclass(frozen=True, slots=True)
class Draft:
    """Native MTP draft: `tokens[0]` is proposed for `position`, to follow `after_token` at `position - 1`."""

    position: int
    after_token: int
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    head_us: int = 0


@dataclass(frozen=True, slots=True)
class PredictedTokens:
    """Reply to a window: the target's own token after every input row (empty when stale)."""

    session: int
    window: int
    epoch: int
    start: int
    predictions: tuple[int, ...]
    draft: Draft | None = None
    stale: bool = False
    times: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """The draft of a window that was answered without it (`VerifyWindow.draft_later`)."""

    session: int
    window: int
    epoch: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class CancelEpoch:
    """Windows of this epoch (and of earlier ones) that have not begun are answered stale, uncomputed."""

    session: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TrimSession:
    """Keep the first `keep` positions; only for cancel, regenerate and turn changes."""

    session: int
    keep: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The session ends; its sequence is free again on every stage."""

    session: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat. `sent_us` is the sender's monotonic clock and comes back unchanged."""

    sent_us: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answered by the loop, also while a decode runs: `busy_ms` tells for how long it has been running."""

    sent_us: int
    busy_ms: int = 0
    queued: int = 0


@dataclass(frozen=True, slots=True)
class StageStatus:
    """State of a stage for whoever asks on a control link, or sent by a stage about one after it."""

    stage: int
    state: str  # ready | busy | unreachable
    reason: str = ""
    busy_ms: int = 0
    queued: int = 0
    sessions: int = 0
    refused_frames: int = 0


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """Something went wrong at a stage; names the session and window if it concerns one."""

    code: str
    reason: str
    stage: int = -1
    retryable: bool = False
    session: int = -1
    window: int = -1


Message = (
    Hello
    | Welcome
    | ConfigureGeneration
    | Prefill
    | PrefillDone
    | VerifyWindow
    | PredictedTokens
    | DraftedTokens
    | CancelEpoch
    | TrimSession
    | Stop
    | Ping
    | Pong
    | StageStatus
    | ErrorMessage
    | NodeMessage
)
