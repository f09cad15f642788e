"""Messages that fit together, to try things with."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from engine.protocol.connection import Connection
from engine.protocol.limits import Limits
from engine.protocol.messages import (
    Hello,
    Message,
    PredictedTokens,
    Prefill,
    Role,
    StageInfo,
    VerifyWindow,
    Welcome,
)
from engine.protocol.sessions import ReplyOrder

N_EMBD = 40  # no multiple of a q8 block

INFO = StageInfo(
    first_layer=15,
    end_layer=30,
    n_layers=30,
    architecture="llama",
    model_name="small",
    fingerprint="ab12",
    n_embd=N_EMBD,
    context=256,
    sequences=2,
    window_rows=8,
    prefill_rows=32,
    native_mtp=True,
    can_rollback=True,
    threads=1,
    exact=True,
)
HELLO = Hello(
    role=Role.LANE,
    chain="c1",
    fingerprint="ab12",
    architecture="llama",
    n_embd=N_EMBD,
    n_layers=30,
    first_layer=15,
    window_rows=8,
    prefill_rows=32,
    context=256,
    sequences=2,
)
WELCOME = Welcome((INFO,))
LIMITS = Limits.agreed(HELLO, WELCOME)


def rows(n: int, *, n_embd: int = N_EMBD, seed: int = 0) -> np.ndarray:
    """Random float32 activations."""
    return np.random.default_rng(seed).standard_normal((n, n_embd)).astype(np.float32)


def window(number: int, start: int, n: int = 1, **changes: Any) -> VerifyWindow:
    """A window of session 1 with activations."""
    message = VerifyWindow(1, number, 0, start, tuple(range(n)), activations=rows(n))
    return replace(message, **changes)


def prefill(start: int, n: int, **changes: Any) -> Prefill:
    """A chunk of session 1 with activations."""
    return replace(Prefill(1, start, tuple(range(n)), 7, activations=rows(n)), **changes)


def reply(asked: VerifyWindow, **changes: Any) -> PredictedTokens:
    """The reply that a window asks for."""
    predictions = tuple(token + 1 for token in asked.tokens)
    return replace(
        PredictedTokens(asked.session, asked.window, asked.epoch, asked.start, predictions), **changes
    )


def connected(
    hello: Hello = HELLO, welcome: Welcome = WELCOME, order: ReplyOrder | None = None
) -> tuple[Connection, Connection]:
    """Opener and acceptor after their handshake."""
    opener, acceptor = Connection.opener(hello, order), Connection.acceptor()
    acceptor.receive(opener.greet())
    opener.receive(acceptor.accept(welcome))
    return opener, acceptor


def same(left: Message, right: Message) -> bool:
    """Equality of messages, activations bit by bit."""
    if type(left) is not type(right):
        return False
    for item in fields(left):
        a, b = getattr(left, item.name), getattr(right, item.name)
        if isinstance(a, np.ndarray):
            if not (isinstance(b, np.ndarray) and a.shape == b.shape and a.tobytes() == b.tobytes()):
                return False
        elif a != b:
            return False
    return True
