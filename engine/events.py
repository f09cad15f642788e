"""The events of an engine. Every front end is fed by them and by nothing else.

An event is a frozen dataclass; on the local link it is a JSON object with its `kind`. Times (`at`) are
seconds on the engine's monotonic clock. `engine.reducer` turns them into what is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

REGISTRY: dict[str, type[Event]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str] = ""
    at: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: the fields and `kind`."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "kind"}
        return {"kind": self.kind, **data}


def event(cls: type[Any]) -> type[Any]:
    """Register an event class under its `kind`."""
    REGISTRY[cls.kind] = cls
    return cls


def from_dict(data: dict[str, Any]) -> Event:
    """Rebuild an event; raises KeyError for an unknown kind and TypeError for wrong fields."""
    values = dict(data)
    cls = REGISTRY[values.pop("kind")]
    for item in fields(cls):
        value = values.get(item.name)
        if isinstance(value, list):
            values[item.name] = tuple(tuple(v) if isinstance(v, list) else v for v in value)
    return cls(**values)


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState(Event):
    """`state`: starting | loading | ready | recovering | failed | stopped. `fraction` -1 when unknown.

    `code` tells the kind of a failure.
    """

    kind: ClassVar[str] = "engine"
    state: str
    detail: str = ""
    fraction: float = -1.0
    code: str = ""


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady(Event):
    """The model and the settings of this run."""

    kind: ClassVar[str] = "model"
    name: str
    path: str
    architecture: str
    layers: int
    fingerprint: str
    native_mtp: bool
    context: int
    exact: bool
    wire: str
    strategy: str
    notes: tuple[str, ...] = ()  # one line each, e.g. why speculation is off


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class StageState(Event):
    """`state`: starting | ready | busy | unreachable | restarting; sent whenever it changes.

    `since`: when this state began, on the clock of `at`; what the reason says may have changed meanwhile.
    """

    kind: ClassVar[str] = "stage"
    index: int
    state: str
    layers: tuple[int, int]  # [first, end)
    where: str
    reason: str = ""
    rtt_ms: float = 0.0
    pid: int = 0
    restarts: int = 0
    since: float = 0.0


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState(Event):
    """A step with a machine that waits for layers.

    `state`: dialling | described | measuring | probing | receiving | checking | cutting | loading | ready |
    left-out; `done` of `total` bytes of it are done. `bytes_sent`: of slices, to this node, by this engine.
    """

    kind: ClassVar[str] = "node"
    name: str
    url: str
    state: str
    layers: tuple[int, int] | tuple[()] = ()
    done: int = 0
    total: int = 0
    bytes_sent: int = 0
    detail: str = ""


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStarted(Event):
    """A request was admitted; `reused` prompt tokens were already in the caches.

    `resumed`: so many tokens of the answer were brought along; they are not told again.
    """

    kind: ClassVar[str] = "request"
    request: str
    prompt_tokens: int
    reused: int
    strategy: str
    seed: int
    temperature: float
    max_tokens: int
    resumed: int = 0


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProgress(Event):
    """Prompt tokens that the last stage has taken, of those to be prefilled."""

    kind: ClassVar[str] = "prefill"
    request: str
    done: int
    total: int


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSent(Event):
    """A window left the coordinator. `sources` are (source, tokens) spans of its drafts, in order."""

    kind: ClassVar[str] = "window"
    request: str
    window: int
    epoch: int
    start: int
    rows: int
    width: int
    sources: tuple[tuple[str, int], ...] = ()
    in_flight: int = 1
    draft_budget: int = 0
    draft_later: bool = False  # the draft is to come behind the reply
    reason: str = ""  # why the policy chose this width and depth


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDone(Event):
    """A reply. `rejected` is (position, drafted token text, target's token text) or empty.

    `stages` are (index, queue µs, compute µs, kv tokens); `route` is direct | lane | local. Of the last
    stage's compute, `draft_us` went into `drafted` tokens of the MTP head, unless they come behind the reply.
    """

    kind: ClassVar[str] = "window-done"
    request: str
    window: int
    epoch: int
    stale: bool
    accepted: int
    width: int
    elapsed_ms: float
    stages: tuple[tuple[int, int, int, int], ...] = ()
    route: str = "direct"
    rejected: tuple[int, str, str] | tuple[()] = ()
    drafted: int = 0
    draft_us: int = 0


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReceived(Event):
    """The MTP head's draft behind the reply to `window`, which took the last stage `draft_us` besides what
    that window took. Windows that are sent because of it come next."""

    kind: ClassVar[str] = "draft"
    request: str
    window: int
    epoch: int
    drafted: int
    draft_us: int


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class TokensCommitted(Event):
    """Tokens of the answer, each (id, origin, text). The texts joined are the answer: a token whose bytes
    end inside a character has the text it completed, possibly none.

    `origin`: target | mtp | ngram | draft | correction | free. `tail` is text that was held back because it
    might have begun a stop string, given out when the answer ended otherwise.
    """

    kind: ClassVar[str] = "tokens"
    request: str
    window: int
    tokens: tuple[tuple[int, str, str], ...]
    tail: str = ""


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Event):
    """Something a person should know. `level`: info | warning | error; `code` is stable."""

    kind: ClassVar[str] = "notice"
    level: str
    code: str
    message: str
    hint: str = ""


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event):
    """The end of a request; `result` is the JSON result of docs/interfaces.md."""

    kind: ClassVar[str] = "finished"
    request: str
    finish_reason: str
    result: dict[str, Any] = field(default_factory=dict)


@event
@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """A bounded queue overflowed: this many events never reached this front end."""

    kind: ClassVar[str] = "dropped"
    count: int
