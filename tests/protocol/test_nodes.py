"""Questions, answers and slices on a node link come in order, and say nothing out of range."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import HandshakeRefused, ProtocolError
from engine.protocol.codec import encode
from engine.protocol.connection import Connection, State
from engine.protocol.limits import MAX_CHUNK_BYTES, MAX_HEADER_BYTES, MAX_HELD
from engine.protocol.messages import ErrorMessage, Hello, Message, Role, Welcome
from engine.protocol.node_messages import (
    Assign,
    Assigned,
    AssignProgress,
    Describe,
    HeldSlice,
    Measure,
    Measured,
    NodeInfo,
    PeerProbed,
    ProbeData,
    ProbeEcho,
    ProbePeer,
    SliceChunk,
    SliceWanted,
)
from tests.protocol.samples import INFO, connected

NODE = Hello(Role.NODE, "c1")
PROBE = Hello(Role.PROBE, "c1")
ABOUT = NodeInfo("second", cores=4, free_memory=1 << 30, free_disk=1 << 30, accepts_slices=True)
ASSIGN = Assign("ab" * 16, "small", 15, 30, "cd" * 32, size=1000, offered=True, stage_index=1)
HELD = HeldSlice("ab" * 16, 15, 30, "cd" * 32)


class Pair:
    """A coordinator and a node; `ask` and `answer` carry a message from one to the other."""

    def __init__(self) -> None:
        self.coordinator, self.node = connected(NODE, Welcome(()))

    def ask(self, *messages: Message) -> None:
        for message in messages:
            assert self.node.receive(self.coordinator.send(message)) == message

    def answer(self, *messages: Message) -> None:
        for message in messages:
            assert self.coordinator.receive(self.node.send(message)) == message


@pytest.fixture
def pair() -> Pair:
    return Pair()


def refused_by_node(pair: Pair, message: Message) -> str:
    """The code with which both ends refuse a message of the coordinator."""
    with pytest.raises(ProtocolError) as ours:
        pair.coordinator.send(message)
    with pytest.raises(ProtocolError) as theirs:
        pair.node.receive(encode(message))
    assert ours.value.code == theirs.value.code
    assert pair.node.state is State.FAILED
    return theirs.value.code


def refused_by_coordinator(pair: Pair, message: Message) -> str:
    """The code with which both ends refuse a message of the node."""
    with pytest.raises(ProtocolError) as ours:
        pair.node.send(message)
    with pytest.raises(ProtocolError) as theirs:
        pair.coordinator.receive(encode(message))
    assert ours.value.code == theirs.value.code
    return theirs.value.code


def test_every_question_has_its_answer(pair: Pair) -> None:
    pair.ask(Describe())
    pair.answer(ABOUT)
    pair.ask(Measure(2, b"header"))
    pair.answer(Measured(2, "{}"))
    pair.ask(ProbePeer("ws://third:1", "secret"))
    pair.answer(PeerProbed("ws://third:1", 0.3, 940.0))
    pair.ask(ASSIGN)
    pair.answer(AssignProgress("loading"), Assigned(4711, "cache"))


def test_a_slice_goes_on_where_the_node_says(pair: Pair) -> None:
    pair.ask(ASSIGN)
    pair.answer(AssignProgress("receiving", 400, 1000), SliceWanted(400))
    pair.ask(SliceChunk(400, bytes(500)), SliceChunk(900, bytes(100)))
    pair.answer(AssignProgress("loading"), Assigned(4711, "received"))


def test_an_error_ends_a_question(pair: Pair) -> None:
    pair.ask(ASSIGN)
    pair.answer(ErrorMessage("cache", "the disk is full"))
    pair.ask(Describe())


def test_one_question_at_a_time(pair: Pair) -> None:
    pair.ask(Describe())
    assert refused_by_node(pair, Measure(1, b"")) == "role"


@pytest.mark.parametrize("answer", [ABOUT, Measured(1, "{}"), Assigned(1, "cache"), SliceWanted(0)], ids=repr)
def test_an_answer_to_nothing_is_refused(pair: Pair, answer: Message) -> None:
    assert refused_by_coordinator(pair, answer) == "role"


def test_an_answer_to_another_question_is_refused(pair: Pair) -> None:
    pair.ask(Describe())
    assert refused_by_coordinator(pair, Measured(1, "{}")) == "role"


def test_a_slice_that_is_not_on_offer_is_not_asked_for(pair: Pair) -> None:
    pair.ask(replace(ASSIGN, offered=False))
    assert refused_by_coordinator(pair, SliceWanted(0)) == "role"


def test_a_slice_is_asked_for_once(pair: Pair) -> None:
    pair.ask(ASSIGN)
    pair.answer(SliceWanted(0))
    assert refused_by_coordinator(pair, SliceWanted(0)) == "role"


def test_a_chunk_that_nobody_asked_for_is_refused(pair: Pair) -> None:
    pair.ask(ASSIGN)
    assert refused_by_node(pair, SliceChunk(0, b"x")) == "role"


@pytest.mark.parametrize(
    "chunk",
    [SliceChunk(1, b"x"), SliceChunk(0, b""), SliceChunk(0, bytes(1001))],
    ids=["gap", "empty", "too long"],
)
def test_a_chunk_in_the_wrong_place_is_refused(pair: Pair, chunk: SliceChunk) -> None:
    pair.ask(ASSIGN)
    pair.answer(SliceWanted(0))
    assert refused_by_node(pair, chunk) == "position"


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "../../etc/passwd"},
        {"fingerprint": "ab" * 16 + "\n"},
        {"sha256": "cd" * 31 + "/."},
        {"model_name": "m" * 5000},
        {"first": -1},
        {"end": 15},
        {"size": 0},
        {"size": 2**60},
        {"threads": 10**6},
        {"context": 2**40},
        {"sequences": 65},
        {"batch_rows": 0},
    ],
    ids=str,
)
def test_an_assignment_out_of_range_is_refused(pair: Pair, changes: dict[str, object]) -> None:
    assert refused_by_node(pair, replace(ASSIGN, **changes)) == "fields"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "about",
    [
        replace(ABOUT, cores=0),
        replace(ABOUT, slices=(HELD,) * (MAX_HELD + 1)),
        replace(ABOUT, host="h" * 5000),
    ],
    ids=["cores", "slices", "host"],
)
def test_a_node_that_describes_itself_out_of_range_is_refused(pair: Pair, about: NodeInfo) -> None:
    pair.ask(Describe())
    assert refused_by_coordinator(pair, about) == "fields"


def test_a_probe_of_somewhere_endless_is_refused(pair: Pair) -> None:
    assert refused_by_node(pair, ProbePeer("ws://third:1", emulate_rtt_ms=float("inf"))) == "fields"


@pytest.mark.parametrize(
    "message",
    [SliceChunk(0, bytes(MAX_CHUNK_BYTES + 1)), Measure(1, bytes(MAX_HEADER_BYTES + 1))],
    ids=["chunk", "header"],
)
def test_what_is_too_long_for_a_frame_is_not_written(message: Message) -> None:
    with pytest.raises(ProtocolError) as refusal:
        encode(message)
    assert refusal.value.code == "frame-length"


def test_a_probe_link_carries_probes_and_nothing_else() -> None:
    opener, node = connected(PROBE, Welcome(()))
    node.receive(opener.send(ProbeData(False, bytes(100))))
    node.receive(opener.send(ProbeData(True)))
    assert opener.receive(node.send(ProbeEcho(100))) == ProbeEcho(100)
    with pytest.raises(ProtocolError):
        opener.send(Describe())


@pytest.mark.parametrize("hello", [NODE, PROBE], ids=["node", "probe"])
def test_a_stage_with_layers_takes_no_others(hello: Hello) -> None:
    acceptor = Connection.acceptor()
    acceptor.receive(Connection.opener(hello).greet())
    with pytest.raises(HandshakeRefused, match="serves layers 15:30 of small"):
        acceptor.accept(Welcome((INFO,)))
