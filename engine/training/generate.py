"""Conversations that the model writes itself: questions sampled, answers mostly greedy.

A question begins with an opening (`openings.py`) or with nothing, and the model ends it; then it answers, and
when the answer ends or has become long, the next question begins. A few sequences are free text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.model.tokenizer import Tokenizer
from engine.training.chat import ChatPieces
from engine.training.decoder import Cache, Tensor, Trunk, maybe_compiled
from engine.training.openings import OPENINGS

MARK = 1 << 30
"""Added to a token that the model itself said in an answer: what drafts are trained on."""

MAX_BATCH = 8192
_FREE_TEXT = 0.04  # share of sequences
_NO_OPENING = 0.2  # share of questions
_GREEDY = 0.8  # share of sequences whose answers are greedy
_ANSWER_TEMPERATURE = 0.6  # of the others
_QUESTION_TOKENS = 128  # a longer question is cut off
_ANSWER_TOKENS = (128, 384)  # the longest answer of a sequence is drawn between these
_MIN_P = 0.05  # tokens less likely than this share of the likeliest are never drawn
_QUESTION, _ANSWER = 0, 1


@dataclass(frozen=True, slots=True)
class Script:
    """What is put into a conversation besides what the model says, as padded rows of tokens (-1: nothing).

    `first` begins sequences and `again` later questions, with each opening in turn; `to_answer` and
    `to_user` stand between turns. `end` ends a turn.
    """

    first: Tensor
    again: Tensor
    to_answer: Tensor
    free: int
    end: int


def script_of(pieces: ChatPieces, tokenizer: Tokenizer, device: str) -> Script:
    """The script for a model's chat template. Its end token is said by the model or stands in for it."""
    openings = [tokenizer.encode(text, special=False, add_bos=False) for text in OPENINGS]
    openings += [[]] * round(len(openings) * _NO_OPENING / (1 - _NO_OPENING))
    to_answer, to_user = pieces.to_answer[1:], pieces.to_user[1:]  # without the end token
    longest = max(len(opening) for opening in openings) + len(pieces.opening) + len(to_user)

    def padded(rows: Sequence[Sequence[int]]) -> Tensor:
        table = np.full((len(rows), longest + len(to_answer) + 1), -1, dtype=np.int64)
        for row, tokens in zip(table, rows, strict=True):
            row[: len(tokens)] = tokens
        return torch.from_numpy(table).to(device)

    return Script(
        first=padded([[*pieces.opening, *opening] for opening in openings]),
        again=padded([[*to_user, *opening] for opening in openings]),
        to_answer=padded([to_answer]),
        free=max(tokenizer.bos, 0),
        end=pieces.end,
    )


def batch_size(trunk: Trunk, rows: int) -> int:
    """Sequences to generate at once: what three quarters of a GPU's free memory hold, few on a CPU."""
    if not trunk.device.startswith("cuda"):
        return 32
    free, _ = torch.cuda.mem_get_info(trunk.device)
    each = Cache.bytes_per_sequence(trunk.shape, rows, trunk.dtype) + 24 * trunk.shape.vocabulary
    return int(max(1, min(MAX_BATCH, 3 * free // 4 // each)))


class Writer:
    """Generates batches of sequences."""

    def __init__(self, trunk: Trunk, script: Script) -> None:
        self._trunk = trunk
        self._script = script
        self._choose = maybe_compiled(_choose, trunk.device)

    def sequences(self, batch: int, rows: int, seed: int) -> NDArray[np.int32]:
        """`batch` sequences of `rows` tokens, (batch, rows); answers carry MARK. The seed decides them."""
        torch.manual_seed(seed)
        with torch.no_grad():
            return _Batch(self._trunk, self._script, batch, rows).run(self._choose)


class _Batch:
    """The state of all sequences of one batch while they grow together."""

    def __init__(self, trunk: Trunk, script: Script, batch: int, rows: int) -> None:
        device = trunk.device
        self._trunk, self._script, self._rows = trunk, script, rows
        self._cache = Cache(trunk, batch, rows)
        self._turn = torch.zeros(batch, dtype=torch.long, device=device)
        self._turn_tokens = torch.zeros_like(self._turn)
        greedy = torch.rand(batch, device=device) < _GREEDY
        self._temperature = torch.where(greedy, 0.0, _ANSWER_TEMPERATURE)
        self._longest = torch.randint(*_ANSWER_TOKENS, (batch,), device=device)
        self._queue = self._drawn(script.first, batch)
        self._next = torch.zeros_like(self._turn)  # place in the queue
        free = torch.rand(batch, device=device) < _FREE_TEXT
        self._queue[free] = -1
        self._queue[free, 0] = script.free
        self._turn[free] = _ANSWER
        self._longest[free] = rows

    def run(self, choose: Callable[[Tensor, Tensor], Tensor]) -> NDArray[np.int32]:
        """Let all sequences grow to their end; `choose` draws tokens from logits and temperatures."""
        batch, device = len(self._turn), self._trunk.device
        tokens = torch.zeros(batch, self._rows, dtype=torch.int32, device=device)
        token, forced = self._forced()
        for position in range(self._rows):
            said = (self._turn == _ANSWER) & ~forced
            tokens[:, position] = (token + said * MARK).to(torch.int32)
            if position + 1 == self._rows:
                break
            logits = self._cache.advance(token, position)
            self._take_turns(token, forced)
            queued, forced = self._forced()
            heat = torch.where(self._turn == _QUESTION, 1.0, self._temperature)
            drawn = choose(logits, heat)
            limit = torch.where(self._turn == _QUESTION, _QUESTION_TOKENS, self._longest)
            drawn = torch.where(self._turn_tokens >= limit, self._script.end, drawn)
            token = torch.where(forced, queued, drawn)
            self._turn_tokens += 1
        return np.asarray(tokens.cpu().numpy())

    def _take_turns(self, token: Tensor, forced: Tensor) -> None:
        """Where a turn has just ended, queue what leads to the next one."""
        ended = (token == self._script.end) & ~forced
        if not bool(ended.any()):
            return
        to_answer = ended & (self._turn == _QUESTION)
        to_question = ended & (self._turn == _ANSWER)
        self._queue[to_answer] = self._script.to_answer[0]
        self._queue[to_question] = self._drawn(self._script.again, int(to_question.sum()))
        self._next[ended] = 0
        self._turn_tokens[ended] = 0
        self._turn = torch.where(ended, 1 - self._turn, self._turn)

    def _forced(self) -> tuple[Tensor, Tensor]:
        """The next queued token of each sequence, and whether there is one."""
        last = self._queue.shape[1] - 1
        token = self._queue.gather(1, self._next.clamp(max=last)[:, None])[:, 0]
        forced = token >= 0
        self._next = self._next + forced.long()
        return token, forced

    def _drawn(self, table: Tensor, rows: int) -> Tensor:
        return table[torch.randint(len(table), (rows,), device=table.device)]


def _choose(logits: Tensor, temperature: Tensor) -> Tensor:
    """A token for each row of logits: the likeliest at temperature 0, else drawn (Gumbel's trick)."""
    scaled = logits / temperature.clamp(min=1e-4)[:, None]
    floor = scaled.amax(-1, keepdim=True) + float(np.log(_MIN_P))
    noise = -torch.log(-torch.log(torch.rand_like(scaled).clamp(1e-20, 1 - 1e-7)))
    drawn = torch.where(scaled < floor, -torch.inf, scaled + noise).argmax(-1)
    return torch.where(temperature > 0, drawn, logits.argmax(-1))
