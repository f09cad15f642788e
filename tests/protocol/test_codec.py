"""Every message survives the wire; nothing else does."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.errors import ProtocolError
from engine.protocol.codec import decode, encode, is_heartbeat, is_widened
from engine.protocol.frames import FrameType
from engine.protocol.limits import NO_ROWS, Limits
from engine.protocol.messages import (
    PROTOCOL_VERSION,
    Draft,
    Hello,
    Hop,
    Message,
    Ping,
    Pong,
    PredictedTokens,
    Role,
    StageTime,
    Stop,
    VerifyWindow,
    WireType,
)
from tests.protocol.samples import (
    HELLO,
    LIMITS,
    N_EMBD,
    WELCOME,
    prefill,
    reply,
    rows,
    same,
    window,
)
from tests.protocol.strategies import messages


def read(data: bytes | bytearray, *, n_embd: int = N_EMBD, limits: Limits = LIMITS) -> Message:
    return decode(data, n_embd=n_embd, limits=limits)


def refusal(data: bytes) -> str:
    """The code that a frame is refused with."""
    with pytest.raises(ProtocolError) as caught:
        read(data)
    return caught.value.code


def put(frame: bytes, offset: int, layout: str, value: int) -> bytes:
    """The frame with one field overwritten."""
    changed = bytearray(frame)
    struct.pack_into(layout, changed, offset, value)
    return bytes(changed)


@given(messages)
def test_every_message_comes_back_equal(message: Message) -> None:
    assert same(read(encode(message)), message)


@given(messages, st.sampled_from(WireType))
def test_a_lossy_wire_changes_nothing_but_the_activations(message: Message, wire: WireType) -> None:
    received = read(encode(message, wire))
    sent = getattr(message, "activations", None)
    if sent is None:
        assert same(received, message)
        return
    got = received.activations  # type: ignore[union-attr]
    assert got is not None
    assert got.shape == sent.shape
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert same(type(message)(**{**_fields(received), "activations": sent}), message)


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__dataclass_fields__}


def test_f32_activations_are_a_view_of_the_frame() -> None:
    frame = encode(window(1, 0, 3))
    received = read(frame)
    assert isinstance(received, VerifyWindow)
    assert received.activations is not None
    assert np.shares_memory(received.activations, np.frombuffer(frame, np.uint8))
    assert received.activations.ctypes.data % 4 == 0


def test_frames_may_come_in_a_bytearray() -> None:
    assert same(read(bytearray(encode(window(1, 0, 3)))), window(1, 0, 3))


@pytest.mark.parametrize(("wire", "code"), [(WireType.F32, 1), (WireType.F16, 2), (WireType.Q8, 3)])
def test_the_flags_name_the_wire_type(wire: WireType, code: int) -> None:
    frame = encode(window(1, 0), wire)
    assert frame[2] & 0b11 == code
    assert not is_widened(frame)


@pytest.mark.parametrize(
    ("wire", "value", "widened"),
    [
        (WireType.F16, 65_504.0, False),
        (WireType.F16, 65_504.1, True),
        (WireType.F16, -103_772.0, True),
        (WireType.F16, np.nan, True),
        (WireType.F16, np.inf, True),
        (WireType.Q8, 103_772.0, False),
        (WireType.Q8, np.nan, True),
        (WireType.Q8, -np.inf, True),
        (WireType.F32, np.nan, False),
    ],
)
def test_rows_that_the_wire_type_cannot_hold_travel_as_f32(
    wire: WireType, value: float, widened: bool
) -> None:
    activations = rows(2)
    activations[1, 3] = value
    frame = encode(window(1, 0, 2, activations=activations), wire)
    assert is_widened(frame) is widened
    received = read(frame).activations  # type: ignore[union-attr]
    if widened or wire is WireType.F32:
        assert received.tobytes() == activations.tobytes()
    else:
        assert np.isfinite(received).all()


def test_a_reply_keeps_its_draft_apart_from_its_predictions() -> None:
    draft = Draft(12, 5, (6, 7), (0.5, 0.25), 90)
    sent = PredictedTokens(1, 2, 3, 10, (4, 5), draft, times=(StageTime(1, 2, 3, 4),))
    assert read(encode(sent)) == sent
    without = PredictedTokens(1, 2, 3, 10, (4, 5))
    assert read(encode(without)) == without


def test_heartbeats_are_recognised_without_decoding() -> None:
    assert is_heartbeat(encode(Ping(1)))
    assert is_heartbeat(encode(Pong(1)))
    assert not is_heartbeat(encode(Stop(1)))
    assert not is_heartbeat(b"")


# --- what is refused ----------------------------------------------------------------------------------------


def test_another_version_is_refused_and_both_versions_are_named() -> None:
    frame = put(encode(Stop(1)), 0, "<B", PROTOCOL_VERSION + 1)
    with pytest.raises(ProtocolError, match=f"version {PROTOCOL_VERSION + 1}.*{PROTOCOL_VERSION}") as caught:
        read(frame)
    assert caught.value.code == "version"


def test_every_type_carries_the_version() -> None:
    for message in (window(1, 0), prefill(0, 2), Stop(1), Ping(1), HELLO, WELCOME, reply(window(1, 0))):
        assert encode(message)[0] == PROTOCOL_VERSION


@pytest.mark.parametrize("kind", [0, max(FrameType) + 1, 255])
def test_an_unknown_type_is_refused(kind: int) -> None:
    assert refusal(put(encode(Stop(1)), 1, "<B", kind)) == "frame-type"


def test_flags_without_a_meaning_are_refused() -> None:
    assert refusal(put(encode(Stop(1)), 2, "<H", 1)) == "frame-flags"
    assert refusal(put(encode(window(1, 0)), 2, "<H", 1 << 15 | 1)) == "frame-flags"
    bare = encode(VerifyWindow(1, 1, 0, 0, (3,)))
    assert refusal(put(bare, 2, "<H", 1 << 2)) == "frame-flags"  # widened, but no activations


@pytest.mark.parametrize(
    "message", [window(1, 0, 2), prefill(0, 3), reply(window(1, 0, 2)), Stop(1), Ping(1), Pong(1)]
)
def test_every_truncation_and_every_trailing_byte_is_refused(message: Message) -> None:
    frame = encode(message)
    for size in range(len(frame)):
        assert refusal(frame[:size]) == "frame-length"
    assert refusal(frame + b"\0") == "frame-length"


ROWS_OF_PREFILL = 12
ROWS_OF_VERIFY = 20
BUDGET_OF_VERIFY = 24
TIMES_OF_VERIFY = 26


@pytest.mark.parametrize("count", [0, 33, 2**31, 2**32 - 1])
def test_a_row_count_beyond_the_agreement_is_refused_before_anything_is_allocated(count: int) -> None:
    assert refusal(put(encode(prefill(0, 2)), ROWS_OF_PREFILL, "<I", count)) == "rows"
    assert refusal(put(encode(window(1, 0, 2)), ROWS_OF_VERIFY, "<I", count)) == "rows"
    assert refusal(put(encode(reply(window(1, 0, 2))), ROWS_OF_VERIFY, "<I", count)) == "rows"


def test_the_limits_of_prefill_and_window_are_their_own() -> None:
    assert isinstance(read(encode(window(1, 0, 8))), VerifyWindow)
    assert refusal(encode(window(1, 0, 9))) == "rows"
    read(encode(prefill(0, 32)))
    assert refusal(encode(prefill(0, 33))) == "rows"


def test_a_position_beyond_the_context_is_refused() -> None:
    read(encode(window(1, 255)))
    assert refusal(encode(window(1, 256))) == "position"
    assert refusal(put(encode(window(1, 0)), 16, "<I", 2**32 - 1)) == "position"


def test_a_huge_draft_budget_or_count_of_stage_times_is_refused() -> None:
    assert refusal(put(encode(window(1, 0)), BUDGET_OF_VERIFY, "<H", 256)) == "fields"
    assert refusal(put(encode(window(1, 0)), TIMES_OF_VERIFY, "<H", 256)) == "fields"
    assert refusal(put(encode(window(1, 0)), TIMES_OF_VERIFY, "<H", 255)) == "frame-length"


def test_negative_tokens_are_refused() -> None:
    frame = encode(window(1, 0, 2))
    assert refusal(put(frame, 28, "<i", -1)) == "fields"
    assert refusal(put(encode(prefill(0, 2)), 16, "<i", -5)) == "fields"


def test_draft_tokens_that_no_flag_announces_are_refused() -> None:
    assert refusal(put(encode(reply(window(1, 0))), 24, "<H", 3)) == "frame-flags"


def test_no_frame_with_rows_is_legal_before_the_handshake() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(encode(window(1, 0)), n_embd=0, limits=NO_ROWS)
    assert caught.value.code == "rows"


@pytest.mark.parametrize(
    "message",
    [
        VerifyWindow(-1, 0, 0, 0, (1,)),
        VerifyWindow(1, 0, 0, 0, (2**31,)),
        VerifyWindow(1, 0, 0, -1, (1,)),
        VerifyWindow(2**32, 0, 0, 0, (1,)),
        Ping(-1),
    ],
)
def test_a_value_without_a_place_in_the_frame_is_not_sent(message: Message) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode(message)
    assert caught.value.code == "fields"


@pytest.mark.parametrize("shape", [(1, N_EMBD), (N_EMBD,), (2, 0), (2, 2, N_EMBD)])
def test_activations_of_another_shape_than_the_tokens_are_not_sent(shape: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode(window(1, 0, 2, activations=np.zeros(shape, np.float32)))
    assert caught.value.code == "rows"


# --- fuzzing: only ever ProtocolError -----------------------------------------------------------------------


def survives(data: bytes) -> None:
    """A frame is decoded or refused; nothing else may happen."""
    with contextlib.suppress(ProtocolError):
        read(data)


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    survives(data)


@given(st.sampled_from(FrameType), st.integers(0, 63), st.binary(max_size=200))
@example(FrameType.HELLO, 0, b"[" * 200)
@example(FrameType.HELLO, 0, b'{"role":"lane","chain":1}')
@example(FrameType.ERROR, 0, b'{"code":"x","reason":"y","stage":1e999}')
def test_random_bodies_under_a_good_head_are_refused(kind: FrameType, flags: int, body: bytes) -> None:
    survives(struct.pack("<BBH", PROTOCOL_VERSION, kind, flags) + body)


@given(messages, st.data())
def test_mutated_frames_are_decoded_or_refused(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    survives(bytes(frame))
    survives(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


def test_a_deep_json_body_is_refused() -> None:
    survives(struct.pack("<BBH", PROTOCOL_VERSION, FrameType.WELCOME, 0) + b"[" * 500_000)


def test_tokens_of_further_stages_travel_but_are_not_shown() -> None:
    hello = Hello(Role.LANE, "c", route=(Hop("ws://b:1", "secret-token"),))
    assert read(encode(hello)) == hello
    assert "secret-token" not in repr(read(encode(hello)))
