"""The frames of lanes that carry rows, and the replies to them: their encoders and decoders for `codec`."""

from __future__ import annotations

import struct

from engine.errors import ProtocolError
from engine.protocol import activations as rows_codec
from engine.protocol import frames
from engine.protocol.frame_checks import (
    Buffer,
    expect_head,
    expect_length,
    expect_positions,
    expect_rows,
    out_of_bounds,
    read_token,
    read_tokens,
)
from engine.protocol.frames import FrameType
from engine.protocol.limits import MAX_DRAFT_TOKENS, MAX_STAGES, Limits
from engine.protocol.messages import (
    PROTOCOL_VERSION,
    Activations,
    Draft,
    DraftedTokens,
    PredictedTokens,
    Prefill,
    PrefillDone,
    StageTime,
    VerifyWindow,
    WireType,
)

# --- rows --------------------------------------------------------------------------------------------------


def _pack_rows(
    tokens: tuple[int, ...], activations: Activations | None, wire: WireType
) -> tuple[int, bytes, bytes | memoryview]:
    """Flags, token bytes and activation bytes."""
    token_bytes = struct.pack(f"<{len(tokens)}i", *tokens)
    if activations is None:
        return 0, token_bytes, b""
    if activations.ndim != 2 or len(activations) != len(tokens) or not activations.size:
        raise ProtocolError(f"activations of shape {activations.shape} for {len(tokens)} tokens", code="rows")
    if rows_codec.fits(activations, wire):
        return frames.WIRE_NUMBERS[wire], token_bytes, rows_codec.pack(activations, wire)
    packed = rows_codec.pack(activations, WireType.F32)
    return frames.WIRE_NUMBERS[WireType.F32] | frames.WIDENED, token_bytes, packed


def _unpack_rows(
    data: Buffer, offset: int, rows: int, n_embd: int, flags: int
) -> tuple[tuple[int, ...], Activations | None]:
    """Tokens and activations that fill `data` from `offset` to its end exactly."""
    wire = frames.WIRE_TYPES.get(flags & frames.WIRE_MASK)
    packed = rows_codec.packed_size(rows, n_embd, wire) if wire else 0
    expect_length(data, offset + rows * 4 + packed)
    tokens = read_tokens(data, offset, rows)
    if wire is None:
        if flags & frames.WIDENED:
            raise ProtocolError("widened activations announced, but there are none", code="frame-flags")
        return tokens, None
    return tokens, rows_codec.unpack(data, offset + rows * 4, rows, n_embd, wire)


def encode_prefill(message: Prefill, wire: WireType) -> bytes:
    flags, tokens, packed = _pack_rows(message.tokens, message.activations, wire)
    if message.final:
        flags |= frames.FINAL
    head = frames.PREFILL.pack(
        PROTOCOL_VERSION,
        FrameType.PREFILL,
        flags,
        message.session,
        message.start,
        len(message.tokens),
        message.next_token,
        len(message.times),
    )
    return b"".join((head, _pack_times(message.times), tokens, packed))


def decode_prefill(data: Buffer, flags: int, n_embd: int, limits: Limits) -> Prefill:
    expect_head(data, frames.PREFILL)
    _, _, _, session, start, rows, next_token, n_times = frames.PREFILL.unpack_from(data)
    expect_rows("a prefill", rows, limits.prefill_rows)
    expect_positions(start, rows, limits.context)
    times, offset = _unpack_times(data, frames.PREFILL.size, n_times)
    tokens, activations = _unpack_rows(data, offset, rows, n_embd, flags)
    return Prefill(
        session, start, tokens, read_token(next_token), bool(flags & frames.FINAL), activations, times
    )


def encode_verify(message: VerifyWindow, wire: WireType) -> bytes:
    flags, tokens, packed = _pack_rows(message.tokens, message.activations, wire)
    if message.stale:
        flags |= frames.STALE
    if message.last_only:
        flags |= frames.LAST_ONLY
    if message.draft_later:
        flags |= frames.DRAFT_LATER
    head = frames.VERIFY.pack(
        PROTOCOL_VERSION,
        FrameType.VERIFY,
        flags,
        message.session,
        message.window,
        message.epoch,
        message.start,
        len(message.tokens),
        message.draft_budget,
        len(message.times),
    )
    return b"".join((head, _pack_times(message.times), tokens, packed))


def decode_verify(data: Buffer, flags: int, n_embd: int, limits: Limits) -> VerifyWindow:
    expect_head(data, frames.VERIFY)
    _, _, _, session, window, epoch, start, rows, budget, n_times = frames.VERIFY.unpack_from(data)
    last_only = bool(flags & frames.LAST_ONLY)
    expect_rows("a window", rows, limits.prefill_rows if last_only else limits.window_rows)
    expect_positions(start, rows, limits.context)
    if budget > MAX_DRAFT_TOKENS:
        out_of_bounds("draft budget", budget, MAX_DRAFT_TOKENS)
    times, offset = _unpack_times(data, frames.VERIFY.size, n_times)
    tokens, activations = _unpack_rows(data, offset, rows, n_embd, flags)
    return VerifyWindow(
        session,
        window,
        epoch,
        start,
        tokens,
        budget,
        stale=bool(flags & frames.STALE),
        activations=activations,
        times=times,
        last_only=last_only,
        draft_later=bool(flags & frames.DRAFT_LATER),
    )


# --- replies ------------------------------------------------------------------------------------------------


def encode_prefill_done(message: PrefillDone, wire: WireType) -> bytes:
    head = frames.PREFILL_DONE.pack(
        PROTOCOL_VERSION, FrameType.PREFILL_DONE, 0, message.session, message.end, len(message.times)
    )
    return head + _pack_times(message.times)


def decode_prefill_done(data: Buffer, flags: int, n_embd: int, limits: Limits) -> PrefillDone:
    expect_head(data, frames.PREFILL_DONE)
    _, _, _, session, end, n_times = frames.PREFILL_DONE.unpack_from(data)
    expect_positions(0, end, limits.context)
    times, offset = _unpack_times(data, frames.PREFILL_DONE.size, n_times)
    expect_length(data, offset)
    return PrefillDone(session, end, times)


def encode_predicted(message: PredictedTokens, wire: WireType) -> bytes:
    draft = message.draft
    flags = (frames.STALE if message.stale else 0) | (frames.HAS_DRAFT if draft else 0)
    parts = [
        frames.PREDICTED.pack(
            PROTOCOL_VERSION,
            FrameType.PREDICTED,
            flags,
            message.session,
            message.window,
            message.epoch,
            message.start,
            len(message.predictions),
            len(draft.tokens) if draft else 0,
            len(message.times),
        ),
        _pack_times(message.times),
        struct.pack(f"<{len(message.predictions)}i", *message.predictions),
    ]
    if draft:
        parts.append(_pack_draft(draft))
    return b"".join(parts)


def decode_predicted(data: Buffer, flags: int, n_embd: int, limits: Limits) -> PredictedTokens:
    expect_head(data, frames.PREDICTED)
    _, _, _, session, window, epoch, start, count, n_draft, n_times = frames.PREDICTED.unpack_from(data)
    if count or not flags & frames.STALE:
        expect_rows("a reply", count, limits.window_rows)
    expect_positions(start, count, limits.context)
    if n_draft and not flags & frames.HAS_DRAFT:
        raise ProtocolError(f"{n_draft} draft tokens, but no draft is announced", code="frame-flags")
    times, offset = _unpack_times(data, frames.PREDICTED.size, n_times)
    draft = None
    if flags & frames.HAS_DRAFT:
        draft = _unpack_draft(data, offset + 4 * count, n_draft)
    else:
        expect_length(data, offset + 4 * count)
    predictions = read_tokens(data, offset, count)
    stale = bool(flags & frames.STALE)
    return PredictedTokens(session, window, epoch, start, predictions, draft, stale, times)


def encode_drafted(message: DraftedTokens, wire: WireType) -> bytes:
    draft = message.draft
    head = frames.DRAFTED.pack(
        PROTOCOL_VERSION,
        FrameType.DRAFTED,
        0,
        message.session,
        message.window,
        message.epoch,
        len(draft.tokens),
    )
    return head + _pack_draft(draft)


def decode_drafted(data: Buffer, flags: int, n_embd: int, limits: Limits) -> DraftedTokens:
    expect_head(data, frames.DRAFTED)
    _, _, _, session, window, epoch, n_draft = frames.DRAFTED.unpack_from(data)
    return DraftedTokens(session, window, epoch, _unpack_draft(data, frames.DRAFTED.size, n_draft))


def _pack_draft(draft: Draft) -> bytes:
    count = len(draft.tokens)
    head = frames.DRAFT.pack(draft.position, draft.after_token, draft.head_us)
    return head + struct.pack(f"<{count}i{count}f", *draft.tokens, *draft.probabilities)


def _unpack_draft(data: Buffer, offset: int, count: int) -> Draft:
    """A draft of `count` tokens that fills `data` from `offset` to its end exactly."""
    if count > MAX_DRAFT_TOKENS:
        out_of_bounds("draft tokens", count, MAX_DRAFT_TOKENS)
    tokens_at = offset + frames.DRAFT.size
    expect_length(data, tokens_at + 8 * count)
    position, after, head_us = frames.DRAFT.unpack_from(data, offset)
    tokens = read_tokens(data, tokens_at, count)
    probabilities = struct.unpack_from(f"<{count}f", data, tokens_at + 4 * count)
    return Draft(position, read_token(after), tokens, probabilities, head_us)


def _pack_times(times: tuple[StageTime, ...]) -> bytes:
    return b"".join(
        [frames.STAGE_TIME.pack(time.stage, time.queue_us, time.compute_us, time.kv_tokens) for time in times]
    )


def _unpack_times(data: Buffer, offset: int, count: int) -> tuple[tuple[StageTime, ...], int]:
    """Stage times and the offset after them."""
    if count > MAX_STAGES:
        out_of_bounds("stage times", count, MAX_STAGES)
    end = offset + count * frames.STAGE_TIME.size
    if len(data) < end:
        raise ProtocolError(f"{len(data)} bytes cannot hold {count} stage times", code="frame-length")
    if not count:
        return (), end
    return tuple([StageTime(*item) for item in frames.STAGE_TIME.iter_unpack(data[offset:end])]), end
