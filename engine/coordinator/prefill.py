"""How the tokens before the next one are fed to the stages: in which batches, and how many at a time.

Kernels differ by the size of a batch (`engine.compute.exactness`): on a CPU a batch of 64 rows and more is
computed in another order than a smaller one. So that an answer equals that of a plain llama.cpp loop, which
computes a prompt in one batch, a prompt is cut into equal batches as large as allowed, its last token in the
last of them; and tokens that were decoded before, when an answer is taken up again on new stages, are
computed in batches so small that they take the kernels of decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

DECODE_ROWS = 63  # most rows of a batch that is computed like single rows

Span = tuple[int, int]


def even_spans(start: int, end: int, most: int) -> list[Span]:
    """Cut [start, end) into the fewest spans of at most `most`, as equal as possible."""
    length = end - start
    count = -(-length // most)
    return [(start + length * n // count, start + length * (n + 1) // count) for n in range(count)]


class PromptFeed:
    """The batches of one prefill and what is under way of it.

    `tokens` are a prompt of `prompt_length` tokens and the answer so far; the first `reused` are in the
    caches already. Without an answer the last batch is no chunk: it is the first window (`last_batch`).
    """

    def __init__(
        self, tokens: Sequence[int], prompt_length: int, *, reused: int, rows: int, credit: int
    ) -> None:
        self.tokens = list(tokens)
        self.in_flight = 0
        self.done = reused  # positions that the last stage has taken
        self._reused = reused
        self._credit = credit
        spans = even_spans(reused, prompt_length, rows) if reused < prompt_length else []
        self.last_batch: Span = (len(tokens) - 1, len(tokens))
        if len(tokens) == prompt_length:
            self.last_batch = spans.pop()
        else:
            begun = max(reused, prompt_length)
            spans += even_spans(begun, len(tokens) - 1, min(rows, DECODE_ROWS))
        self._waiting = deque(spans)

    @property
    def total(self) -> int:
        """Tokens to be computed before the first new one."""
        return len(self.tokens) - self._reused

    @property
    def computed(self) -> int:
        """Tokens of those that the last stage has taken."""
        return self.done - self._reused

    @property
    def exhausted(self) -> bool:
        """Every chunk has been sent: it is the turn of the last batch."""
        return not self._waiting

    def next_chunk(self) -> Span | None:
        """The next chunk to send, unless too many are under way: each stage has one and one more waits."""
        if not self._waiting or self.in_flight >= self._credit:
            return None
        self.in_flight += 1
        return self._waiting.popleft()

    def acknowledged(self, end: int) -> None:
        """The last stage has taken the oldest chunk under way, up to position `end`."""
        self.in_flight -= 1
        self.done = end

    def completed(self) -> None:
        """The last batch has been computed."""
        self.done = len(self.tokens)
