"""Drawing tokens so that the random number depends on (seed, position) and nothing else.

The order of the steps is llama.cpp's (common/sampling.cpp): logit bias, penalties, grammar, top-k, top-p,
min-p, temperature. A draw is a pure function of logits, tokens before it, seed and position: the same seed
gives the same text at any window width, and equality with a draft decides acceptance without bias.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.compute.grammar import Grammar
from engine.errors import UsageError
from engine.protocol.messages import SamplingSettings

Logits = NDArray[np.float32]

_MASK64 = (1 << 64) - 1
_CHUNK = 256  # random words made at once
_NUCLEI = (256, 4096)  # candidates that nearly always hold the top-p mass
_BLOCK = 256  # weights summed up at once


class PositionRandom:
    """Numbers in [0, 1) by position: the words of the Philox 4x64-10 stream whose key is the seed."""

    def __init__(self, seed: int) -> None:
        self._key = seed & _MASK64
        self._chunk = -1
        self._words: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def __call__(self, position: int) -> float:
        chunk, index = divmod(position, _CHUNK)
        if chunk != self._chunk:
            generator = np.random.Philox(key=self._key, counter=chunk * (_CHUNK // 4))  # four words a count
            self._words = generator.random_raw(_CHUNK)
            self._chunk = chunk
        return (int(self._words[index]) >> 11) * 2.0**-53


class Sampler:
    """Draws the tokens of one sequence by fixed settings."""

    def __init__(self, settings: SamplingSettings, n_vocab: int, grammar: Grammar | None = None) -> None:
        _check(settings, n_vocab)
        self._settings = settings
        self._grammar = grammar
        self._random = PositionRandom(settings.seed)
        self._bias_tokens = np.array([token for token, _ in settings.logit_bias], dtype=np.intp)
        self._bias = np.array([bias for _, bias in settings.logit_bias], dtype=np.float32)
        additive = settings.presence_penalty != 0 or settings.frequency_penalty != 0
        self._penalises = settings.repeat_last_n != 0 and (additive or settings.repeat_penalty != 1.0)

    def draw(self, logits: Logits, tokens: Sequence[int], position: int) -> int:
        """The token at `position`, from the logits (n_vocab) after `tokens[:position]`."""
        settings = self._settings
        scores = self.scores(logits, tokens, position)
        if settings.temperature <= 0:
            likeliest = int(scores.argmax())
            if self._grammar is None or self._grammar.allows(likeliest, tokens, position):
                return likeliest  # checking one token takes microseconds, a vocabulary milliseconds
        if self._grammar is not None:
            self._grammar.mask(scores, tokens, position)
            if settings.temperature <= 0:
                return int(scores.argmax())
        candidates = self.filter(scores)
        if candidates is not None:
            scores = scores[candidates]
        weights = np.exp((scores - scores.max()) / np.float32(settings.temperature))
        chosen = pick(weights, self._random(position))
        return chosen if candidates is None else int(candidates[chosen])

    def scores(self, logits: Logits, tokens: Sequence[int], position: int) -> Logits:
        """A copy of the logits with bias and penalties applied."""
        scores = logits.copy()  # the array is llama.cpp's
        if len(self._bias):
            np.add.at(scores, self._bias_tokens, self._bias)
        if self._penalises:
            self._penalise(scores, tokens, position)
        return scores

    def trim(self, keep: int) -> None:
        """Forget state that depends on positions from `keep` on."""
        if self._grammar is not None:
            self._grammar.trim(keep)

    def close(self) -> None:
        if self._grammar is not None:
            self._grammar.close()

    def _penalise(self, scores: Logits, tokens: Sequence[int], position: int) -> None:
        """Repeat, presence and frequency penalties (llama_sampler_penalties_apply), in place."""
        settings = self._settings
        last_n = position if settings.repeat_last_n < 0 else settings.repeat_last_n
        counts = Counter(tokens[max(0, position - last_n) : position])
        seen = np.fromiter(counts, dtype=np.intp, count=len(counts))
        count = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
        values = scores[seen]
        repeat = np.float32(settings.repeat_penalty)
        values = np.where(values <= 0, values * repeat, values / repeat)
        scores[seen] = values - (count * np.float32(settings.frequency_penalty) + settings.presence_penalty)

    def filter(self, scores: Logits) -> NDArray[np.intp] | None:
        """Token ids that pass top-k, top-p and min-p; None if none of them is set."""
        settings = self._settings
        k = settings.top_k if 0 < settings.top_k < len(scores) else len(scores)
        candidates = None
        if settings.top_p < 1:
            candidates = _nucleus(scores, k, settings.top_p)
        elif k < len(scores):
            candidates = _likeliest(scores, k)
        if settings.min_p > 0:
            values = scores if candidates is None else scores[candidates]
            passing = np.flatnonzero(values >= values.max() + np.float32(math.log(settings.min_p)))
            candidates = passing if candidates is None else candidates[passing]
        return candidates


def pick(weights: NDArray[np.float32], random: float) -> int:
    """The index at which the running sum of the weights exceeds `random` (in [0, 1)) times their total.

    Sums of blocks first: a running sum over a whole vocabulary takes longer than all the rest of a draw.
    """
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK), dtype=np.float64).cumsum()
    target = random * sums[-1]
    block = _first_above(sums, target)
    before = sums[block - 1] if block else 0.0
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    return block * _BLOCK + _first_above(inside, target - before)


def _first_above(sums: NDArray[np.float64], target: float) -> int:
    """First index whose running sum is above the target; where rounding leaves none, the last with weight."""
    return min(int(sums.searchsorted(target, side="right")), int(sums.searchsorted(sums[-1])))


def _likeliest(scores: Logits, k: int) -> NDArray[np.intp]:
    """The k tokens with the highest scores, highest first, equal ones in order of ids."""
    ids = np.arange(len(scores)) if k >= len(scores) else np.argpartition(scores, -k)[-k:]
    ids.sort()
    ordered: NDArray[np.intp] = ids[np.argsort(-scores[ids], kind="stable")]
    return ordered


def _nucleus(scores: Logits, k: int, top_p: float) -> NDArray[np.intp]:
    """The likeliest of the top k tokens, as few as hold `top_p` of the probability of these k."""
    highest = scores.max()
    if k == len(scores):
        total = np.exp(scores - highest).sum(dtype=np.float64)
    else:
        total = np.exp(scores[_likeliest(scores, k)] - highest).sum(dtype=np.float64)
    for enough in (*_NUCLEI, k):  # sorting a whole vocabulary takes milliseconds
        candidates = _likeliest(scores, min(k, enough))
        mass = np.exp(scores[candidates] - highest).cumsum(dtype=np.float64)
        if mass[-1] >= top_p * total:
            break
    return candidates[: int(mass.searchsorted(top_p * total)) + 1]


def _check(settings: SamplingSettings, n_vocab: int) -> None:
    """Raise UsageError for settings that have no meaning."""
    for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(settings, name)):
            raise UsageError(f"{name} is {getattr(settings, name)}, but must be a number")
    if settings.repeat_penalty <= 0:
        raise UsageError(f"repeat_penalty is {settings.repeat_penalty}, but must be above 0")
    if not 0 <= settings.min_p <= 1:
        raise UsageError(f"min_p is {settings.min_p}, but must be between 0 and 1")
    for token, _ in settings.logit_bias:
        if not 0 <= token < n_vocab:
            raise UsageError(f"logit_bias names token {token}, but the vocabulary has {n_vocab}")
