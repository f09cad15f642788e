"""Figures that panels show, computed from the state of the reducer. Pure, and bounded in cost.

Every function looks at the newest few hundred windows at most, so a long answer costs no more than a short
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from engine.view import Count, Request, Window, quantile

RECENT = 256  # windows that figures "now" look at
SPEED_SECONDS = 2.0  # of decoding behind the speed "now"
SPANS_MS = (50, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 60_000)  # of the timeline
WINDOWS_SHOWN = 8  # that the timeline aims to show


def recent(request: Request, count: int = RECENT) -> list[Window]:
    """The newest windows that have come back, oldest first."""
    return request.windows[-count:]


def committed(window: Window) -> int:
    """Tokens that a window added to the answer: its right drafts and the target's own.

    The first draft of a window that holds drafts only was confirmed by the window before it.
    """
    return 0 if window.done.stale else window.done.accepted + window.sent.rows - window.sent.width


def speed_now(request: Request) -> float:
    """Tokens per second over the last seconds of decoding; 0 while unknown."""
    windows = recent(request)
    if len(windows) < 2:
        return 0.0
    newest = windows[-1].done.at
    within = [window for window in windows if window.done.at >= newest - SPEED_SECONDS]
    if len(within) < 2:
        within = windows[-2:]
    elapsed = newest - within[0].done.at
    return sum(committed(window) for window in within[1:]) / elapsed if elapsed > 0 else 0.0


def plain_estimate(request: Request) -> float:
    """Tokens per second that plain decoding would reach on these stages, from times of this very answer.

    A plain token costs one window of one row: what such a row costs on every stage, drafting left out, and
    what a window spends outside the stages, which is its whole time less queues and compute. The cost of one
    row is measured where single rows were sent, and otherwise the intercept and slope of compute time over
    rows. Stale windows tell nothing: stages pass them on without computing. 0 while unknown.
    """
    windows = [window for window in recent(request) if window.done.stages and not window.done.stale]
    if not windows:
        return 0.0
    computed = [(window.sent.rows, _compute_ms(window) - window.done.draft_us / 1000) for window in windows]
    outside = median(_outside_ms(window) for window in windows)
    one_row = _cost_of_one_row(computed)
    per_token = one_row + outside
    return 1000 / per_token if per_token > 0 else 0.0


def hop_ms(request: Request) -> float:
    """The median time of one hop from stage to stage, from what windows spent outside the stages."""
    windows = [
        window for window in recent(request, 64) if len(window.done.stages) > 1 and not window.done.stale
    ]
    return median(_outside_ms(w) / len(w.done.stages) for w in windows) if windows else 0.0


def _outside_ms(window: Window) -> float:
    return max(window.done.elapsed_ms - _compute_ms(window) - _queue_ms(window), 0.0)


def _compute_ms(window: Window) -> float:
    return sum(compute for _, _, compute, _ in window.done.stages) / 1000


def _queue_ms(window: Window) -> float:
    return sum(queue for _, queue, _, _ in window.done.stages) / 1000


def _cost_of_one_row(computed: Sequence[tuple[int, float]]) -> float:
    singles = sorted(cost for rows, cost in computed if rows == 1)
    if len(singles) >= 3:
        return quantile(singles, 0.5)
    mean_rows = sum(rows for rows, _ in computed) / len(computed)
    mean_cost = sum(cost for _, cost in computed) / len(computed)
    spread = sum((rows - mean_rows) ** 2 for rows, _ in computed)
    if spread == 0:
        return mean_cost  # all windows are of one size: an upper bound
    slope = sum((rows - mean_rows) * (cost - mean_cost) for rows, cost in computed) / spread
    cheapest = min(cost for _, cost in computed)
    return min(max(mean_cost + max(slope, 0.0) * (1 - mean_rows), 0.0), cheapest)


def propose_rate(request: Request) -> float:
    """The share of windows that carried drafts."""
    windows = recent(request)
    return sum(window.sent.width > 0 for window in windows) / len(windows) if windows else 0.0


def mean_committed(request: Request) -> float:
    """Tokens that a window committed on average, stale ones included: they took their time as well."""
    windows = recent(request)
    return sum(committed(window) for window in windows) / len(windows) if windows else 0.0


def acceptance_over_time(request: Request, buckets: int, source: str = "") -> list[float | None]:
    """Acceptance rates of the newest windows that carried drafts, oldest first.

    With a `source`, of its drafts alone; None where there was none.
    """
    drafted = [window for window in recent(request) if window.sent.width]
    size = max(1, -(-len(drafted) // buckets))
    rates: list[float | None] = []
    for first in range(0, len(drafted), size):
        total = Count()
        for window in drafted[first : first + size]:
            total = _plus(total, window, source)
        rates.append(total.rate if total.proposed else None)
    return rates


def _plus(total: Count, window: Window, source: str) -> Count:
    first = 0
    for name, length in window.sent.sources:
        if not source or name == source:
            total = total.plus(length, min(max(window.done.accepted - first, 0), length))
        first += length
    return total


@dataclass(frozen=True, slots=True)
class Span:
    """What a stage did for a window, from `start` to `end` on the engine's clock.

    `kind`: useful | stale | pending | draft.
    """

    stage: int
    start: float
    end: float
    window: int
    kind: str


def newest_moment(request: Request) -> float:
    """The time of the newest thing known of an answer."""
    moments = [request.started.at, request.last_token_at or 0.0]
    moments.extend(sent.at for sent in request.in_flight.values())
    if request.windows:
        moments.append(request.windows[-1].done.at)
    return max(moments)


def timeline_span_ms(request: Request) -> int:
    """A time span, one of a few so that the picture does not jump, that shows some windows."""
    ends = [window.done.at for window in recent(request, 64)]
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    wanted = median(gaps) * 1000 * WINDOWS_SHOWN if gaps else 400
    return next((span for span in SPANS_MS if span >= wanted), SPANS_MS[-1])


def window_spans(window: Window, behind_us: int = 0) -> list[Span]:
    """When a window was computed where, and when the last stage drafted: in its reply, `behind_us` behind it.

    Only durations are measured on the stages, so what is left of its way is shared equally among its hops.
    """
    stages = sorted(window.done.stages)
    spent = sum(queue + compute for _, queue, compute, _ in stages) / 1e6
    hops = max(len(stages), 1)
    hop = max(window.done.at - window.sent.at - spent, 0.0) / hops
    number, kind = window.sent.window, "stale" if window.done.stale else "useful"
    spans, moment = [], window.sent.at
    for place, (index, queue_us, compute_us, _) in enumerate(stages):
        drafting_us = window.done.draft_us if place == len(stages) - 1 else 0
        begun = moment + (hop if place else 0.0) + queue_us / 1e6
        moment = begun + compute_us / 1e6
        spans.append(Span(index, begun, moment - drafting_us / 1e6, number, kind))
    if stages and window.done.draft_us + behind_us:
        spans.append(Span(index, spans[-1].end, moment + behind_us / 1e6, number, "draft"))
    return spans


def timeline(request: Request, start: float, end: float) -> list[Span]:
    """Everything that stages did for this answer between two moments, windows under way included."""
    spans: list[Span] = []
    windows = recent(request)
    behind_us = {draft.window: draft.draft_us for draft in request.drafts[-RECENT:]}
    for window in reversed(windows):
        if window.done.at < start:
            break
        known = window_spans(window, behind_us.get(window.sent.window, 0))
        spans.extend(span for span in known if span.end > start and span.start < end)
    spans.extend(span for span in _pending(request, windows, end) if span.end > start)
    return spans


def _pending(request: Request, windows: Sequence[Window], now: float) -> list[Span]:
    """Where the windows in flight should be by now, if they take as long as the newest one that came back
    from all stages."""
    whole = next((w for w in reversed(windows) if w.done.stages and not w.done.stale), None)
    if whole is None:
        return []
    like = [span for span in window_spans(whole) if span.kind != "draft"]
    sent_at = whole.sent.at
    return [
        Span(
            span.stage,
            sent.at + span.start - sent_at,
            min(sent.at + span.end - sent_at, now),
            number,
            "pending",
        )
        for number, sent in request.in_flight.items()
        for span in like
        if sent.at + span.start - sent_at < now
    ]
