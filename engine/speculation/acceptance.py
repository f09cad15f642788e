"""How likely a candidate is to be accepted, learnt within one request.

An n-gram draft is judged by the length of the match before it (the candidates before it count: they have been
right if it matters), a draft with a confidence by that, any other by its depth. Every committed token for
which there was a candidate is an observation, whether the candidate had been sent or not, so a source that is
not used is still known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from operator import mul

from engine.speculation.stream import Candidate

MEMORY = 64  # observations after which an old one counts for 1/e
LEAST_MEMORY = 4.0  # observations that are never forgotten
CERTAIN = 0.995  # nothing is ever more likely than this


class Rate:
    """A share of successes: a prior worth `weight` observations, then what was seen."""

    __slots__ = ("_count", "_hits")

    def __init__(self, prior: float, weight: float) -> None:
        self._hits = prior * weight
        self._count = weight

    def observe(self, success: bool) -> None:
        """One more observation; older ones, and the prior, fade."""
        keep = 1.0 - 1.0 / MEMORY
        self._hits = self._hits * keep + success
        self._count = self._count * keep + 1.0

    def forget(self) -> None:
        """Time has passed without an observation: the same belief, held less firmly."""
        if self._count > LEAST_MEMORY:
            self._hits -= self._hits / MEMORY
            self._count -= self._count / MEMORY

    @property
    def mean(self) -> float:
        """The expected share."""
        return min(self._hits / self._count, CERTAIN)

    def hopeful(self, deviations: float) -> float:
        """The mean plus so many standard deviations of what we believe."""
        mean = self.mean
        return min(mean + deviations * sqrt(mean * (1.0 - mean) / (self._weight + 1.0)), CERTAIN)

    @property
    def _weight(self) -> float:
        """Observations that the belief is worth."""
        return self._count


class DeeperRate(Rate):
    """The rate of drafts one deeper than those of `shallower`: much the same, until it is known better."""

    __slots__ = ("_shallower",)

    def __init__(self, shallower: Rate) -> None:
        super().__init__(0.0, 0.0)
        self._shallower = shallower

    @property
    def mean(self) -> float:
        """The expected share."""
        prior = DEEPER * self._shallower.mean
        return min((self._hits + DRAFT_WEIGHT * prior) / self._weight, CERTAIN)

    @property
    def _weight(self) -> float:
        return self._count + DRAFT_WEIGHT


# (shortest match, prior acceptance of the next token)
NGRAM_PRIORS = (
    (0, 0.25),
    (3, 0.35),
    (4, 0.45),
    (6, 0.6),
    (8, 0.75),
    (12, 0.87),
    (16, 0.93),
    (24, 0.97),
    (40, 0.98),
)
# (least confidence, prior acceptance)
CONFIDENCE_PRIORS = (
    (0.0, 0.17),
    (0.2, 0.33),
    (0.35, 0.5),
    (0.5, 0.63),
    (0.7, 0.78),
    (0.85, 0.9),
    (0.95, 0.95),
    (0.99, 0.99),
)
DRAFT_PRIOR = 0.62  # of the first token of a draft
DEEPER = 0.95  # every further token of a draft is that much less likely than the one before it
DEPTHS = 8  # the deepest are judged together
NGRAM_WEIGHT = 3.0
DRAFT_WEIGHT = 8.0  # an unlucky start must not switch a good head off: finding out again costs drafts


class Acceptance:
    """Estimates of one request."""

    def __init__(self) -> None:
        bounds = [bound for bound, _ in NGRAM_PRIORS]
        rates = [Rate(prior, NGRAM_WEIGHT) for _, prior in NGRAM_PRIORS]
        # by matched length, up to the one from which on all are alike
        self._ngram = [rates[bisect_right(bounds, length) - 1] for length in range(bounds[-1] + 1)]
        self._confidence_bounds = [bound for bound, _ in CONFIDENCE_PRIORS]
        self._confidence = [Rate(prior, DRAFT_WEIGHT) for _, prior in CONFIDENCE_PRIORS]
        self.drafts_seen = 0  # observations of candidates that were not from the text
        self._depth = [Rate(DRAFT_PRIOR, DRAFT_WEIGHT)]
        while len(self._depth) < DEPTHS:
            self._depth.append(DeeperRate(self._depth[-1]))

    def rate(self, candidate: Candidate) -> Rate:
        """The estimate for a candidate, given that those before it are right."""
        if candidate.source == "ngram":
            return self._ngram[min(candidate.evidence, len(self._ngram) - 1)]
        if candidate.confidence >= 0:
            return self._confidence[bisect_right(self._confidence_bounds, candidate.confidence) - 1]
        return self.at_depth(candidate.evidence)

    def at_depth(self, depth: int) -> Rate:
        """The estimate for a draft at this depth when nothing else is known of it."""
        return self._depth[min(depth, len(self._depth) - 1)]

    def draft_survivals(self, drafts: int, deviations: float = 0.0) -> list[float]:
        """Chance that the first 1, 2, .. of so many drafts are all right when nothing else is known of them,
        each of them better than expected by so many standard deviations."""
        rates = (self.at_depth(depth).hopeful(deviations) for depth in range(drafts))
        return list(accumulate(rates, mul))

    def observe(self, candidate: Candidate, right: bool) -> None:
        """The target has decided about a candidate whose predecessors were all right."""
        self.rate(candidate).observe(right)
        if candidate.source == "ngram":
            return
        self.drafts_seen += 1
        if candidate.confidence >= 0:
            self.at_depth(candidate.evidence).observe(right)

    def survivals(self, candidates: Sequence[Candidate]) -> list[float]:
        """Chance that the first 1, 2, .. of the candidates are all right."""
        survival = 1.0
        return [survival := survival * self.rate(candidate).mean for candidate in candidates]
