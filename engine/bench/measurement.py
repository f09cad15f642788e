"""One finished measurement: an arm answered a workload in a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.bench.windows import Packed
from engine.config.plain import from_plain


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. Times are milliseconds; `decoded` counts the tokens that came in `decode_ms`, after the
    first one, an end token included.
    """

    tokens: tuple[int, ...]  # without the end token
    decoded: int
    decode_ms: float
    first_token_ms: float
    prompt_tokens: int
    compute_ms: float = 0.0  # of all stages, mean per window; 0 where it is not known
    speculative: dict[str, Any] = field(default_factory=dict)  # counters of the JSON result; empty: none
    windows: tuple[Packed, ...] = ()  # of an engine, the first of which ends the prompt

    @property
    def window_count(self) -> int:
        """Windows that gave the `decoded` tokens; 0 where that is not known."""
        return len(self.windows) - 1 if self.windows else int(self.speculative.get("windows", 0))


@dataclass(frozen=True, slots=True)
class Measurement:
    """All turns of a workload, one after the other."""

    round: int
    workload: str
    category: str
    arm: str
    turns: tuple[Turn, ...]

    @property
    def key(self) -> tuple[int, str, str]:
        return self.round, self.workload, self.arm

    @property
    def decoded(self) -> int:
        return sum(turn.decoded for turn in self.turns)

    @property
    def decode_ms(self) -> float:
        return sum(turn.decode_ms for turn in self.turns)

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Token ids of each turn."""
        return tuple(turn.tokens for turn in self.turns)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """Read one back; raises UsageError naming the field."""
        return from_plain(cls, data, "measurement")
