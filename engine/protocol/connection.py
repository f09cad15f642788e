"""One connection as a state machine without any I/O: frames in, checked messages out, and the other way.

The opener speaks first (`Hello`), the acceptor answers once (`Welcome` or an error), then messages flow. What
a peer may send depends on the role of the connection; everything else is a `ProtocolError`, after which the
connection is of no more use.
"""

from __future__ import annotations

from enum import Enum

from engine.errors import HandshakeRefused, ProtocolError, SkippyError
from engine.protocol import codec
from engine.protocol import node_messages as node
from engine.protocol.handshake import NODE_ROLES, check_hello, check_welcome
from engine.protocol.limits import CONTROL_BYTES, FIRST_FRAME_BYTES, NO_ROWS, Limits
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    DraftedTokens,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    PredictedTokens,
    Prefill,
    PrefillDone,
    Role,
    StageStatus,
    Stop,
    TrimSession,
    VerifyWindow,
    Welcome,
    WireType,
)
from engine.protocol.nodes import NodeExchange
from engine.protocol.sessions import LaneSessions, ReplyOrder


class State(Enum):
    """Where the handshake stands."""

    START = "start"  # nothing sent, nothing received
    GREETED = "greeted"  # Hello sent (opener) or received (acceptor)
    OPEN = "open"
    FAILED = "failed"


_BOTH_WAYS: frozenset[type[Message]] = frozenset({Ping, Pong, ErrorMessage})
_REPLIES = _BOTH_WAYS | {PredictedTokens, DraftedTokens, PrefillDone, StageStatus}
_FROM_OPENER: dict[Role, frozenset[type[Message]]] = {
    Role.LANE: _BOTH_WAYS | {ConfigureGeneration, Prefill, VerifyWindow, CancelEpoch, TrimSession, Stop},
    Role.RETURN: _BOTH_WAYS,
    Role.CONTROL: _BOTH_WAYS | {StageStatus},  # a question: its other fields are ignored
    Role.NODE: _BOTH_WAYS
    | {
        node.Describe,
        node.Measure,
        node.ProbePeer,
        node.Assign,
        node.SliceChunk,
    },
    Role.PROBE: _BOTH_WAYS | {node.ProbeData},
}
_FROM_ACCEPTOR: dict[Role, frozenset[type[Message]]] = {
    Role.LANE: _REPLIES,
    Role.RETURN: _REPLIES,
    Role.CONTROL: _BOTH_WAYS | {StageStatus},
    Role.NODE: _BOTH_WAYS
    | {
        node.NodeInfo,
        node.Measured,
        node.PeerProbed,
        node.AssignProgress,
        node.SliceWanted,
        node.Assigned,
    },
    Role.PROBE: _BOTH_WAYS | {node.ProbeEcho},
}
_NOTHING: frozenset[type[Message]] = frozenset()


class Connection:
    """Both ends of the protocol. Make one with `Connection.opener(hello)` or `Connection.acceptor()`."""

    def __init__(self, hello: Hello | None, order: ReplyOrder | None) -> None:
        self.state = State.START
        self.hello = hello
        self.welcome: Welcome | None = None
        self.limits = NO_ROWS
        self.widened_frames = 0  # sent as f32 because the agreed wire type could not hold a value
        self.max_frame_bytes = FIRST_FRAME_BYTES if hello is None else CONTROL_BYTES
        self._is_opener = hello is not None
        self._order = order
        self._sessions: LaneSessions | None = None
        self._exchange: NodeExchange | None = None
        self._sendable = _NOTHING
        self._receivable = _NOTHING
        self._n_embd = 0
        self._wire = WireType.F32

    @classmethod
    def opener(cls, hello: Hello, order: ReplyOrder | None = None) -> Connection:
        """The side that dials. With `order`, every reply must be the one that is due; a stage that only
        passes replies on gives none, the coordinator checks them.
        """
        return cls(hello, order)

    @classmethod
    def acceptor(cls) -> Connection:
        """The side that listens."""
        return cls(None, None)

    @property
    def is_open(self) -> bool:
        """True between the handshake and the end."""
        return self.state is State.OPEN

    # --- handshake ------------------------------------------------------------------------------------------

    def greet(self) -> bytes:
        """Opener: the Hello frame."""
        if self.state is not State.START or self.hello is None:
            raise ProtocolError("Hello is sent once, by the opener, before anything else", code="handshake")
        self.state = State.GREETED
        return codec.encode(self.hello)

    def accept(self, welcome: Welcome) -> bytes:
        """Acceptor: agree to the Hello that came; the Welcome frame."""
        if self.state is not State.GREETED or self._is_opener:
            raise ProtocolError("Welcome answers a Hello, once", code="handshake")
        assert self.hello is not None
        check_welcome(self.hello, welcome)
        if welcome.stages:
            check_hello(self.hello, welcome.stages[0])
        frame = codec.encode(welcome)
        self._open(welcome)
        return frame

    def refuse(self, error: SkippyError, stage: int = -1) -> bytes:
        """Either side: the frame that tells the peer why this is the end of the connection."""
        self.state = State.FAILED
        return codec.encode(ErrorMessage(error.code, str(error), stage))

    def _open(self, welcome: Welcome) -> None:
        hello = self.hello
        assert hello is not None
        self.state = State.OPEN
        self.welcome = welcome
        self.limits = NO_ROWS if hello.role in NODE_ROLES else Limits.agreed(hello, welcome)
        self._wire = hello.wire
        mine, theirs = _FROM_OPENER[hello.role], _FROM_ACCEPTOR[hello.role]
        self._sendable, self._receivable = (mine, theirs) if self._is_opener else (theirs, mine)
        self.max_frame_bytes = CONTROL_BYTES
        if hello.role is Role.NODE:
            self._exchange = NodeExchange()
        if hello.role is Role.LANE:
            self._n_embd = hello.n_embd
            self._sessions = LaneSessions(self.limits, hello.n_embd, tokens_only=hello.first_layer == 0)
            if not self._is_opener:
                self.max_frame_bytes = self.limits.lane_frame_bytes(hello.n_embd)

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, frame: bytes | bytearray) -> Message:
        """The checked message of a frame. After a ProtocolError nothing is left but `refuse(error)`."""
        try:
            return self._receive(frame)
        except ProtocolError:
            self.state = State.FAILED
            raise

    def send(self, message: Message) -> bytes:
        """The frame of a message, if it may be sent now; a ProtocolError leaves the connection as it was."""
        if type(message) not in self._sendable or self.state is not State.OPEN:
            raise self._not_allowed(message, "sent")
        if self._exchange is not None:
            self._account(message, from_opener=self._is_opener)
        if not self._is_opener:
            return codec.encode(message)
        frame = codec.encode(message, self._wire)
        if self._sessions is not None:
            self._sessions.forward(message)
        if self._order is not None:
            self._order.sent(message)
        if codec.is_widened(frame):
            self.widened_frames += 1
        return frame

    def _receive(self, frame: bytes | bytearray) -> Message:
        if len(frame) > self.max_frame_bytes:
            raise ProtocolError(
                f"a frame of {len(frame)} bytes, at most {self.max_frame_bytes} were agreed",
                code="frame-length",
            )
        message = codec.decode(frame, n_embd=self._n_embd, limits=self.limits)
        if self.state is not State.OPEN:
            return self._receive_handshake(message)
        if type(message) not in self._receivable:
            raise self._not_allowed(message, "received")
        if self._exchange is not None:
            self._account(message, from_opener=not self._is_opener)
        if not self._is_opener:
            if self._sessions is not None:
                self._sessions.forward(message)
        elif self._order is not None:
            self._order.received(message)
        return message

    def _account(self, message: Message, *, from_opener: bool) -> None:
        """Keep the order of questions and answers on a node link."""
        assert self._exchange is not None
        if from_opener:
            self._exchange.asked(message)
        else:
            self._exchange.answered(message)

    def _receive_handshake(self, message: Message) -> Message:
        if self._is_opener and self.state is State.GREETED:
            if isinstance(message, Welcome):
                assert self.hello is not None
                check_welcome(self.hello, message)
                self._open(message)
                return message
            if isinstance(message, ErrorMessage):
                raise HandshakeRefused(message.reason, code=message.code)
        elif not self._is_opener and self.state is State.START and isinstance(message, Hello):
            self.hello = message
            self.state = State.GREETED
            return message
        raise self._not_allowed(message, "received")

    def _not_allowed(self, message: Message, verb: str) -> ProtocolError:
        name = type(message).__name__
        if self.state is not State.OPEN:
            return ProtocolError(f"{name} cannot be {verb} in state {self.state.value}", code="handshake")
        role = self.hello.role.value if self.hello else "new"
        return ProtocolError(f"{name} cannot be {verb} on a {role} link", code="role")
