"""From tokens to text: characters that span tokens, and stop strings that span windows."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class AnswerText:
    """Turns tokens into text as they are committed.

    Bytes that end inside a character wait for the rest of it. Text that may be the beginning of a stop string
    waits until it turns out not to be: what was given out is never taken back.
    """

    def __init__(self, piece: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._piece = piece
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._given: list[str] = []

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._given)

    def feed(self, token: int) -> tuple[str, bool]:
        """Text that this token completes, and whether a stop string was reached.

        The stop string and anything after it is not part of the text.
        """
        self._held += self._decoder.decode(self._piece(token))
        starts = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if starts:
            text, self._held = self._held[: min(starts)], ""
            return self._give(text), True
        keep = self._possible_stop()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._give(text), False

    def flush(self) -> str:
        """What was held back, at the end of an answer. Half a character is dropped."""
        text, self._held = self._held, ""
        return self._give(text)

    def _give(self, text: str) -> str:
        if text:
            self._given.append(text)
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest
