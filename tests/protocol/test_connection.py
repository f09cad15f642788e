"""The handshake comes first and once; afterwards each role may send what it is there for and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import HandshakeRefused, LinkError, ProtocolError
from engine.protocol.codec import encode
from engine.protocol.connection import Connection, State
from engine.protocol.handshake import NODE_ROLES
from engine.protocol.limits import CONTROL_BYTES, FIRST_FRAME_BYTES
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    ErrorMessage,
    Hello,
    Message,
    Ping,
    Pong,
    PrefillDone,
    Role,
    StageStatus,
    Stop,
    TrimSession,
    Welcome,
    WireType,
)
from engine.protocol.sessions import ReplyOrder
from tests.protocol.samples import HELLO, INFO, WELCOME, connected, prefill, reply, rows, same, window

CONFIGURE = ConfigureGeneration(1)
FORWARD: tuple[Message, ...] = (
    CONFIGURE, prefill(0, 4), window(0, 4), CancelEpoch(1, 0), TrimSession(1, 2), Stop(1),
)  # fmt: skip
BACKWARD: tuple[Message, ...] = (reply(window(0, 4)), PrefillDone(1, 4))
STATUS = StageStatus(1, "ready")
ALWAYS: tuple[Message, ...] = (Ping(1), Pong(1), ErrorMessage("x", "y"))


def code_of_send(connection: Connection, message: Message) -> str:
    with pytest.raises(ProtocolError) as caught:
        connection.send(message)
    return caught.value.code


def code_of_receive(connection: Connection, frame: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        connection.receive(frame)
    return caught.value.code


def test_hello_and_welcome_open_both_ends() -> None:
    opener, acceptor = Connection.opener(HELLO), Connection.acceptor()
    assert acceptor.receive(opener.greet()) == HELLO
    assert not opener.is_open
    assert not acceptor.is_open
    assert opener.receive(acceptor.accept(WELCOME)) == WELCOME
    assert opener.is_open
    assert acceptor.is_open
    assert opener.limits == acceptor.limits


def test_a_whole_answer_passes_unchanged() -> None:
    opener, acceptor = connected(order=ReplyOrder())
    for message in FORWARD:
        assert same(acceptor.receive(opener.send(message)), message)
    for answer in (PrefillDone(1, 4), reply(window(0, 4)), STATUS, *ALWAYS):
        assert same(opener.receive(acceptor.send(answer)), answer)


# --- handshake ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [*FORWARD, *BACKWARD, STATUS, *ALWAYS, WELCOME])
def test_nothing_comes_before_hello(message: Message) -> None:
    if message not in (FORWARD[1], FORWARD[2], BACKWARD[0]):  # their rows are refused even earlier
        assert code_of_receive(Connection.acceptor(), encode(message)) == "handshake"
    assert code_of_send(Connection.opener(HELLO), message) == "handshake"
    assert code_of_send(Connection.acceptor(), message) == "handshake"


def test_hello_comes_once() -> None:
    opener, acceptor = Connection.opener(HELLO), Connection.acceptor()
    frame = opener.greet()
    with pytest.raises(ProtocolError):
        opener.greet()
    acceptor.receive(frame)
    assert code_of_receive(acceptor, frame) == "handshake"
    opener, acceptor = connected()
    assert code_of_receive(acceptor, frame) == "role"
    assert code_of_send(opener, HELLO) == "role"


def test_nothing_but_the_answer_comes_between_hello_and_welcome() -> None:
    for frame in (encode(Ping(1)), encode(CONFIGURE), encode(HELLO)):
        opener, acceptor = Connection.opener(HELLO), Connection.acceptor()
        acceptor.receive(opener.greet())
        assert code_of_receive(acceptor, frame) == "handshake"
        assert code_of_receive(opener, frame) == "handshake"


def test_welcome_comes_once_and_from_the_acceptor() -> None:
    opener, acceptor = connected()
    with pytest.raises(ProtocolError):
        acceptor.accept(WELCOME)
    assert code_of_receive(opener, encode(WELCOME)) == "role"
    assert code_of_receive(acceptor, encode(WELCOME)) == "role"
    with pytest.raises(ProtocolError):
        Connection.opener(HELLO).accept(WELCOME)
    with pytest.raises(ProtocolError):
        Connection.acceptor().accept(WELCOME)
    with pytest.raises(ProtocolError):
        Connection.acceptor().greet()


def test_a_refusal_reaches_the_opener_with_code_and_reason() -> None:
    opener, acceptor = Connection.opener(HELLO), Connection.acceptor()
    acceptor.receive(opener.greet())
    frame = acceptor.refuse(LinkError("stage 2 at b:1 is gone", hint="start it"))
    with pytest.raises(HandshakeRefused, match="stage 2 at b:1 is gone; start it") as caught:
        opener.receive(frame)
    assert caught.value.code == "link"
    assert opener.state is State.FAILED


def test_an_acceptor_cannot_agree_to_what_does_not_fit() -> None:
    acceptor = Connection.acceptor()
    acceptor.receive(Connection.opener(replace(HELLO, window_rows=9)).greet())
    with pytest.raises(HandshakeRefused, match="window rows 9"):
        acceptor.accept(WELCOME)


def test_an_opener_does_not_believe_a_welcome_of_another_model() -> None:
    opener = Connection.opener(HELLO)
    opener.greet()
    assert code_of_receive(opener, encode(Welcome((replace(INFO, fingerprint="ff99"),)))) == "handshake"
    assert opener.state is State.FAILED


def test_an_unknown_wire_type_is_refused_and_named() -> None:
    frame = Connection.opener(HELLO).greet().replace(b'"f32"', b'"f64"')
    with pytest.raises(ProtocolError, match=r"'f64'.*f32, f16, q8"):
        Connection.acceptor().receive(frame)


# --- roles --------------------------------------------------------------------------------------------------


def hello_of(role: Role) -> Hello:
    return HELLO if role is Role.LANE else Hello(role, "c1")


def welcome_of(role: Role) -> Welcome:
    return Welcome(()) if role in NODE_ROLES else WELCOME


def allowed(role: Role, *, from_opener: bool) -> tuple[Message, ...]:
    if role in NODE_ROLES:
        return ALWAYS
    if role is Role.LANE:
        return (*FORWARD, *ALWAYS) if from_opener else (*BACKWARD, STATUS, *ALWAYS)
    if role is Role.RETURN:
        return ALWAYS if from_opener else (*BACKWARD, STATUS, *ALWAYS)
    return (STATUS, *ALWAYS)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("from_opener", [True, False])
def test_each_role_sends_and_receives_what_it_is_there_for(role: Role, from_opener: bool) -> None:
    may = allowed(role, from_opener=from_opener)
    for message in (*FORWARD, *BACKWARD, STATUS, *ALWAYS, HELLO, WELCOME):
        opener, acceptor = connected(hello_of(role), welcome_of(role))
        sender, receiver = (opener, acceptor) if from_opener else (acceptor, opener)
        if message in may:
            if message in FORWARD[1:]:
                receiver.receive(sender.send(CONFIGURE))
            if isinstance(message, TrimSession) or message is FORWARD[2]:
                receiver.receive(sender.send(prefill(0, 4)))
            assert same(receiver.receive(sender.send(message)), message)
        else:
            assert code_of_send(sender, message) == "role"
            assert code_of_receive(receiver, encode(message)) in ("role", "frame-length", "rows")
            assert receiver.state is State.FAILED


def test_after_a_violation_nothing_is_received_or_sent_any_more() -> None:
    _, acceptor = connected()
    assert code_of_receive(acceptor, b"nonsense") == "version"
    assert code_of_receive(acceptor, encode(Ping(1))) == "handshake"
    assert code_of_send(acceptor, Ping(1)) == "handshake"


def test_a_message_that_may_not_be_sent_does_no_harm() -> None:
    opener, acceptor = connected()
    assert code_of_send(opener, window(0, 0)) == "session"
    acceptor.receive(opener.send(CONFIGURE))
    acceptor.receive(opener.send(window(0, 0)))


# --- both ends hold the rules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (window(0, 0, session=9), "session"),
        (window(0, 5), "position"),
        (window(0, 0, 9), "rows"),
        (prefill(0, 33), "rows"),
        (window(0, 0, activations=None), "rows"),
        (window(0, 0, 2, activations=rows(2, n_embd=8)), "rows"),
        (TrimSession(1, 3), "position"),
    ],
)
def test_sender_and_receiver_refuse_alike(message: Message, code: str) -> None:
    opener, acceptor = connected()
    acceptor.receive(opener.send(CONFIGURE))
    assert code_of_send(opener, message) == code
    received = code_of_receive(acceptor, encode(message))
    assert received in (code, "frame-length")  # a frame with rows of another width has another length


def test_the_coordinator_takes_only_replies_that_are_due_on_either_way() -> None:
    order = ReplyOrder()
    lane, stage = connected(order=order)
    back, last = connected(Hello(Role.RETURN, "c1"), order=order)
    stage.receive(lane.send(CONFIGURE))
    asked = [window(number, number) for number in range(3)]
    for message in asked:
        stage.receive(lane.send(message))
    back.receive(last.send(reply(asked[0])))
    lane.receive(stage.send(reply(asked[1])))  # the return link broke, the lane took over
    assert code_of_receive(lane, stage.send(reply(asked[1]))) == "window-order"


def test_a_stage_in_the_middle_passes_replies_on_without_checking_their_order() -> None:
    opener, acceptor = connected()
    assert same(opener.receive(acceptor.send(reply(window(5, 9)))), reply(window(5, 9)))


# --- sizes --------------------------------------------------------------------------------------------------


def test_the_first_frame_is_small_and_later_ones_as_large_as_agreed() -> None:
    acceptor = Connection.acceptor()
    assert acceptor.max_frame_bytes == FIRST_FRAME_BYTES
    assert code_of_receive(acceptor, bytes(FIRST_FRAME_BYTES + 1)) == "frame-length"
    opener, acceptor = connected()
    assert opener.max_frame_bytes == CONTROL_BYTES
    assert acceptor.max_frame_bytes == CONTROL_BYTES
    assert code_of_receive(acceptor, bytes(CONTROL_BYTES + 1)) == "frame-length"


def test_a_prefill_of_8_mib_fits_the_frame_size_that_was_agreed() -> None:
    info = replace(INFO, n_embd=4096, prefill_rows=512, context=4096)
    hello = replace(HELLO, n_embd=4096, prefill_rows=512, context=4096)
    for wire in WireType:
        opener, acceptor = connected(replace(hello, wire=wire), Welcome((info,)))
        acceptor.receive(opener.send(CONFIGURE))
        activations = rows(512, n_embd=4096)
        activations[0, 0] = 1e9  # f16 would widen it: the frame size must allow for that
        frame = opener.send(prefill(0, 512, activations=activations))
        assert len(frame) <= acceptor.max_frame_bytes
        acceptor.receive(frame)
    assert acceptor.max_frame_bytes < 8 * 1024 * 1024 + 16 * 1024


@given(
    n_embd=st.integers(1, 8192),
    window_rows=st.integers(1, 300),
    prefill_rows=st.integers(1, 300),
)
def test_no_legal_frame_is_larger_than_agreed(n_embd: int, window_rows: int, prefill_rows: int) -> None:
    info = replace(INFO, n_embd=n_embd, window_rows=window_rows, prefill_rows=prefill_rows, context=300)
    hello = replace(HELLO, n_embd=n_embd, window_rows=window_rows, prefill_rows=prefill_rows, context=300)
    opener, acceptor = connected(hello, Welcome((info,)))
    acceptor.receive(opener.send(CONFIGURE))
    chunk = prefill(0, prefill_rows, activations=rows(prefill_rows, n_embd=n_embd))
    acceptor.receive(opener.send(chunk))


def test_widened_frames_are_counted() -> None:
    opener, acceptor = connected(replace(HELLO, wire=WireType.F16))
    acceptor.receive(opener.send(CONFIGURE))
    opener.send(window(0, 0))
    assert opener.widened_frames == 0
    huge = rows(1)
    huge[0, 0] = 70_000
    frame = opener.send(window(1, 0, activations=huge))
    assert opener.widened_frames == 1
    received = acceptor.receive(frame)
    assert received.activations.tobytes() == huge.tobytes()  # type: ignore[union-attr]
