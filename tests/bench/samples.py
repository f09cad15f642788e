"""Measurements made up for tests."""

from __future__ import annotations

from typing import Any

from engine.bench.arms import PLAIN, Arm, Kind
from engine.bench.measurement import Measurement, Turn

WHOLE = Arm(Kind.WHOLE, 1)
ONE_STAGE = Arm(Kind.ENGINE, 1)

_PLACES = ("processor", "cores", "system", "skippy", "llama-cpp-python", "python", "model", "suite")
HEAD: dict[str, Any] = dict.fromkeys(_PLACES, "x") | {
    "stages": 2,
    "compute.threads": 1,
    "max_tokens": 9,
    "temperature": 0.0,
    "repeat": 2,
}
"""What a report tells of settings and machine."""


def split(strategy: str = PLAIN, rtt_ms: float = 0.0) -> Arm:
    return Arm(Kind.ENGINE, 1, 2, strategy, rtt_ms)


def measured(
    arm: Arm,
    ms_per_token: float,
    *,
    round: int = 0,
    category: str = "chat",
    workload: str = "",
    tokens: tuple[int, ...] = (1, 2, 3, 4, 5),
    **turn: Any,
) -> Measurement:
    """One turn whose tokens after the first took so long each."""
    decoded = len(tokens) - 1
    values: dict[str, Any] = {"first_token_ms": 50.0, "prompt_tokens": 10, **turn}
    answer = Turn(tokens=tokens, decoded=decoded, decode_ms=ms_per_token * decoded, **values)
    return Measurement(round, workload or category, category, arm.name, (answer,))
