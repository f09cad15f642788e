"""What it takes to decode with MTP drafts that come behind the reply to their window, not in it.

The coordinator then sends the next token at once, in a window of one row, and the head drafts while that
window is on its way; the drafts follow in windows of their own. So drafting costs next to no time, and a
wrong draft hardly any: the token that the model says instead was never kept waiting. But each window of
drafts ends later than the one before it.

Notation: L(r), M(r), F(r) = milliseconds of a window of r rows for a whole loop, at its slowest stage and at
the first one; D(n) = price of n drafts at the last stage; S(j) = chance that the first j drafts are right;
K(r) = how much longer a stage takes in a stream. n drafts in windows of w rows give 1 + S(1) + .. + S(n)
tokens in

    L(1) + X + S(1) lag(w) + B(w) (S(w+1) + S(2w+1) + ..) + (1 - S(1)) waste(w)

- X: what the window of one row takes longer while the head drafts. It is measured for each n; until then,
  how much later the head is done than the window arrives there, and what it was measured to be beyond that.
- lag(w): from its reply to that of the first drafts. It is measured, but never less than D(n); until then
  max(D(n), M(1) K(1)) + L(w) - L(1).
- B(w) = max(M(w) K(w), L(w) / depth) between replies after that.
- waste(w): for how long the first stage still computes a wrong draft when the next token is there for it,
  max(0, max(D(n), F(1)) + F(w) - L(1)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Protocol

from engine.speculation.costs import LoopTimes


class DraftCosts(Protocol):
    """What has to be known besides the times of windows: learnt (`CostModel`), or planned with."""

    @property
    def beside_drafts_ms(self) -> Mapping[int, float]:
        """X by number of drafts, as far as it is measured."""

    def draft_ms(self, drafts: int) -> float:
        """D."""

    def lag_ms(self, rows: int) -> float | None:
        """lag, None until measured."""

    def crowding(self, rows: int) -> float:
        """K."""


SLACK = 0.25
"""Of a slowest stage's window, that may be missing for one more to be under way."""


def streaming_ms(costs: DraftCosts, times: LoopTimes, rows: int) -> float:
    """M(r) K(r): what a window of a stream takes at its slowest stage."""
    return times.slowest[rows] * costs.crowding(rows)


def window_ms(costs: DraftCosts, times: LoopTimes, drafts: int) -> float:
    """L(1) + X: a window of one row beside which the head drafts so many tokens."""
    measured = costs.beside_drafts_ms
    excess_ms = measured.get(drafts)
    if excess_ms is None:
        beyond = [ms - _waiting_ms(costs, times, count) for count, ms in measured.items()]
        excess_ms = _waiting_ms(costs, times, drafts) + max(0.0, min(beyond, default=0.0))
    return times.loop[1] + excess_ms


def _waiting_ms(costs: DraftCosts, times: LoopTimes, drafts: int) -> float:
    """How much later than the window arrives at the head it is done with drafting."""
    return max(0.0, costs.draft_ms(drafts) - (times.loop[1] - times.last[1]))


def following_ms(
    costs: DraftCosts, times: LoopTimes, survivals: Sequence[float], width: int, depth: int, *, sent: int = 0
) -> float:
    """What the drafts behind that window are expected to take besides, in windows of `width` rows.

    `survivals` are S(1), S(2), .. of as many drafts; the first `sent` of them are under way.
    """
    between = max(streaming_ms(costs, times, width), times.loop[width] / depth)
    if sent:
        return between * sum(survivals[sent::width])
    draft_ms = costs.draft_ms(len(survivals))
    wasted_ms = max(draft_ms, times.first[1]) + times.first[width] - times.loop[1]
    took = (1.0 - survivals[0]) * max(0.0, wasted_ms)
    lag_ms = costs.lag_ms(width)
    if lag_ms is None:
        lag_ms = max(draft_ms, streaming_ms(costs, times, 1)) + times.loop[width] - times.loop[1]
    took += survivals[0] * max(draft_ms, lag_ms)
    return took + between * sum(survivals[width::width])


def useful_depth(costs: DraftCosts, times: LoopTimes, width: int, limit: int) -> int:
    """Windows of so many rows that can be under way, at most `limit`, without one waiting much for another.

    One that waits at the first stage when a draft turns out wrong delays the next token there.
    """
    slowest = max(streaming_ms(costs, times, width), 1e-3)
    return min(limit, max(2, ceil(times.loop[width] / slowest - SLACK)))


def best_way(
    costs: DraftCosts, times: LoopTimes, survivals: Sequence[float], depth_limit: int
) -> tuple[float, int]:
    """The least that `following_ms` can be, and the width that it takes: single rows or all in one window."""
    ways = []
    for width in {1, len(survivals)}:
        depth = useful_depth(costs, times, width, depth_limit)
        ways.append((following_ms(costs, times, survivals, width, depth), width))
    return min(ways)
