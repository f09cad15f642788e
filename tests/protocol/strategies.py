"""Hypothesis strategies for every message that a frame can carry."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from engine.protocol.limits import MAX_DRAFT_TOKENS
from engine.protocol.messages import (
    CancelEpoch,
    ConfigureGeneration,
    Draft,
    DraftedTokens,
    ErrorMessage,
    Hello,
    Hop,
    LinkEmulation,
    Message,
    Ping,
    Pong,
    PredictedTokens,
    Prefill,
    PrefillDone,
    Role,
    SamplingSettings,
    StageInfo,
    StageStatus,
    StageTime,
    Stop,
    TrimSession,
    VerifyWindow,
    Welcome,
    WireType,
)
from engine.protocol.node_messages import (
    Assign,
    Assigned,
    AssignProgress,
    Describe,
    HeldSlice,
    Measure,
    Measured,
    NodeInfo,
    NodeMessage,
    PeerProbed,
    ProbeData,
    ProbeEcho,
    ProbePeer,
    SliceChunk,
    SliceWanted,
)
from tests.protocol.samples import LIMITS, N_EMBD, rows

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
tokens = st.integers(0, 2**31 - 1)
probabilities = st.floats(0, 1, width=32)
text = st.text(max_size=20)
small_floats = st.floats(-1e6, 1e6)

stage_times = st.lists(st.builds(StageTime, u32, u32, u32, u32), max_size=4).map(tuple)


@st.composite
def activations(draw: st.DrawFn, n: int) -> np.ndarray:
    """Rows of any finite or other float32 values."""
    seed = draw(st.integers(0, 2**16))
    values = rows(n, seed=seed)
    special = draw(st.sampled_from([0.0, -0.0, 1e-40, 65_504.0, 65_520.0, 1e30, np.inf, np.nan]))
    values[draw(st.integers(0, n - 1)), draw(st.integers(0, N_EMBD - 1))] = special
    return values


@st.composite
def windows(draw: st.DrawFn) -> VerifyWindow:
    n = draw(st.integers(1, LIMITS.window_rows))
    return VerifyWindow(
        draw(u32), draw(u32), draw(u32),
        draw(st.integers(0, LIMITS.context - n)),
        tuple(draw(st.lists(tokens, min_size=n, max_size=n))),
        draw(st.integers(0, MAX_DRAFT_TOKENS)),
        draw(st.booleans()),
        draw(st.none() | activations(n)),
        draw(stage_times),
        draft_later=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def prefills(draw: st.DrawFn) -> Prefill:
    n = draw(st.integers(1, LIMITS.prefill_rows))
    return Prefill(
        draw(u32),
        draw(st.integers(0, LIMITS.context - n)),
        tuple(draw(st.lists(tokens, min_size=n, max_size=n))),
        draw(tokens),
        draw(st.booleans()),
        draw(st.none() | activations(n)),
        draw(stage_times),
    )


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 6))
    return Draft(
        draw(u32),
        draw(tokens),
        tuple(draw(st.lists(tokens, min_size=n, max_size=n))),
        tuple(draw(st.lists(probabilities, min_size=n, max_size=n))),
        draw(u32),
    )


@st.composite
def replies(draw: st.DrawFn) -> PredictedTokens:
    stale = draw(st.booleans())
    n = 0 if stale else draw(st.integers(1, LIMITS.window_rows))
    return PredictedTokens(
        draw(u32), draw(u32), draw(u32),
        draw(st.integers(0, LIMITS.context - n)),
        tuple(draw(st.lists(tokens, min_size=n, max_size=n))),
        draw(st.none() | drafts()),
        stale,
        draw(stage_times),
    )  # fmt: skip


hops = st.lists(st.builds(Hop, text, text), max_size=3).map(tuple)
emulations = st.builds(LinkEmulation, small_floats, small_floats, small_floats, st.integers(0, 2**63))
hellos = st.builds(
    Hello, st.sampled_from(Role), text, text, text, u16, u16, u16, u16, st.sampled_from(WireType),
    u16, u16, u32, u16, hops, emulations,
)  # fmt: skip
samplings = st.builds(
    SamplingSettings,
    temperature=small_floats,
    top_k=u16,
    logit_bias=st.lists(st.tuples(tokens, small_floats), max_size=3).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    grammar=text,
)
infos = st.builds(
    StageInfo, u16, u16, u16, text, text, text, u16, u32, u16, u16, u16, st.booleans(), st.booleans(),
    u16, st.booleans(), text, u32,
)  # fmt: skip

u64 = st.integers(0, 2**64 - 1)
held = st.lists(st.builds(HeldSlice, text, u16, u16, text), max_size=3).map(tuple)
node_messages: st.SearchStrategy[NodeMessage] = st.one_of(
    st.builds(Describe),
    st.builds(NodeInfo, text, u16, u32, u32, st.booleans(), held, st.lists(text, max_size=3).map(tuple)),
    st.builds(Measure, u32, st.binary(max_size=40)),
    st.builds(Measured, u16, text),
    st.builds(ProbePeer, text, text, small_floats, small_floats),
    st.builds(PeerProbed, text, small_floats, small_floats),
    st.builds(Assign, text, text, u16, u16, text, u32, st.booleans(), u16, u16, st.booleans(), u32, u16, u16),
    st.builds(AssignProgress, text, u32, u32),
    st.builds(SliceWanted, u32),
    st.builds(SliceChunk, u64, st.binary(max_size=40)),
    st.builds(Assigned, u16, text, text, u32),
    st.builds(ProbeData, st.booleans(), st.binary(max_size=40)),
    st.builds(ProbeEcho, u64),
)

messages: st.SearchStrategy[Message] = st.one_of(
    node_messages,
    windows(),
    prefills(),
    replies(),
    st.builds(DraftedTokens, u32, u32, u32, drafts()),
    st.builds(PrefillDone, u32, st.integers(0, LIMITS.context), stage_times),
    st.builds(CancelEpoch, u32, u32),
    st.builds(TrimSession, u32, u32),
    st.builds(Stop, u32),
    st.builds(Ping, st.integers(0, 2**64 - 1)),
    st.builds(Pong, st.integers(0, 2**64 - 1), u32, u32),
    hellos,
    st.builds(Welcome, st.lists(infos, max_size=3).map(tuple)),
    st.builds(ConfigureGeneration, u32, samplings, u32, text),
    st.builds(StageStatus, u16, text, text, u32, u32, u16, u32),
    st.builds(ErrorMessage, text, text, st.integers(-1, 9), st.booleans(), st.integers(-1, 9)),
)
