"""Which sequence of the llama.cpp context belongs to which session of which lane."""

from __future__ import annotations

from engine.errors import Busy

SessionKey = tuple[int, int]  # (lane, session)


class SequenceTable:
    """Hands out the `count` sequences of a context; a session keeps its own until it is released."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count - 1, -1, -1))
        self._held: dict[SessionKey, int] = {}

    def sequence(self, lane: int, session: int) -> int:
        """The sequence of a session, taken on first use. Raises `Busy` when all are held."""
        key = (lane, session)
        held = self._held.get(key)
        if held is not None:
            return held
        if not self._free:
            raise Busy(
                f"all {self._count} sequences of this stage are in use",
                hint="wait for another answer to end, or start the stage with more --sequences",
            )
        sequence = self._free.pop()
        self._held[key] = sequence
        return sequence

    def release(self, lane: int, session: int) -> int | None:
        """Free the sequence of a session; None if it held none."""
        sequence = self._held.pop((lane, session), None)
        if sequence is not None:
            self._free.append(sequence)
        return sequence

    def sessions_of(self, lane: int) -> list[int]:
        return [session for held_lane, session in self._held if held_lane == lane]

    def __len__(self) -> int:
        return len(self._held)
