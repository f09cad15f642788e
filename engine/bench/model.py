"""What the cost model of docs/performance.md says of the windows that a run has sent.

Every stage is a server: a window starts there when it has arrived and the stage is free, and takes C(rows).
The last stage also drafts, which takes D(drafts): before its reply leaves or, where drafts come behind
replies, after it, and then the draft leaves. Between the stages, and from the last one back, lie hops that
take equal parts of R + b. A window is sent when the reply or the draft that made the coordinator send it has
come. With one window under way and drafts in replies this is the sum of C + D + R + b over the windows.
Milliseconds throughout.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bench.windows import Window


@dataclass(frozen=True, slots=True)
class Costs:
    """C and D as measured: medians over windows of as many rows, and over as many drafts."""

    stage_ms: dict[tuple[int, int], float]  # by stage and rows
    draft_ms: dict[int, float]  # by drafts

    @classmethod
    def of(cls, windows: Sequence[Window]) -> Costs:
        stages: dict[tuple[int, int], list[float]] = defaultdict(list)
        drafting: dict[int, list[float]] = defaultdict(list)
        for window in windows:
            for stage, ms in enumerate(window.stage_ms):
                stages[stage, window.rows].append(ms)
            if window.drafted:
                drafting[window.drafted].append(window.draft_ms)
        return cls(
            {place: statistics.median(values) for place, values in stages.items()},
            {drafts: statistics.median(values) for drafts, values in drafting.items()},
        )

    def computing(self, stage: int, window: Window) -> float:
        """C: what a window takes at a stage; nothing where it was passed on, being stale."""
        return self.stage_ms[stage, window.rows] if stage < len(window.stage_ms) else 0.0

    def drafting(self, windows: Sequence[Window]) -> list[float]:
        """D: what the draft of each window of an answer takes at the last stage; nothing where it has none.

        The first draft takes what it took: before it the head catches up with the prompt.
        """
        first = next((window for window in windows if window.drafted), None)
        return [
            window.draft_ms if window is first else self.draft_ms.get(window.drafted, 0.0)
            for window in windows
        ]


def replay(windows: Sequence[Window], costs: Costs, *, stages: int, rest_ms: float) -> float:
    """Time of one answer from its first token to its last, as the model has it. `rest_ms` is R + b."""
    hop = rest_ms / stages  # one less between the stages, and one back
    free = [0.0] * stages
    replies: list[float] = []
    drafts: list[float] = []  # when those behind the replies have come
    last_token = 0.0
    for window, drafting in zip(windows, costs.drafting(windows), strict=True):
        at = (drafts if window.joins else replies)[window.after - 1] if window.after else 0.0
        for stage in range(stages):
            at = max(at, free[stage]) + costs.computing(stage, window)
            free[stage] = at
            at += hop
        free[-1] += drafting
        drafts.append(at + drafting)
        replies.append(at if window.behind else at + drafting)
        if not window.stale:
            last_token = replies[-1]
    return last_token - replies[0] if replies else 0.0


@dataclass(frozen=True, slots=True)
class Answers:
    """An arm's answers of one round. `windows` are those of each answer."""

    windows: tuple[Sequence[Window], ...]  # the first of each ends the prompt
    tokens: int  # after the first of each
    decode_ms: float

    @property
    def token_ms(self) -> float:
        return self.decode_ms / self.tokens


@dataclass(frozen=True, slots=True)
class Modelled:
    """What the model says of the answers of one round, beside what they were."""

    token_ms: float
    of_model: float  # measured speed over the model's
    # The model's speed over that of plain decoding: the most that these windows can reach.
    against_plain: float
    plain_compute_ms: float  # C(1)
    rest_ms: float  # R + b: what a plain token took besides C(1)
    compute_ms: float  # of all stages, drafting apart: mean over the windows as they were sent
    draft_ms: float  # in replies and behind them, in the same mean
    slowest_ms: float  # of both, at the stage where they are most


def modelled(answers: Answers, plain: Answers, stages: int) -> Modelled | None:
    """The model of answers, with b as plain decoding shows it in the same round.

    None if a record holds no windows, or no token.
    """
    own = [window for windows in answers.windows for window in windows]
    theirs = [window for windows in plain.windows for window in windows[1:]]
    sent = sum(len(windows[1:]) for windows in answers.windows)
    if not (sent and theirs and answers.tokens and plain.tokens):
        return None
    plain_costs, costs = Costs.of(theirs), Costs.of(own)
    plain_compute_ms = sum(plain_costs.stage_ms[stage, 1] for stage in range(stages))
    rest_ms = plain.token_ms - plain_compute_ms
    total = sum(replay(one, costs, stages=stages, rest_ms=rest_ms) for one in answers.windows)
    compute_ms = [sum(costs.computing(stage, window) for window in own) / sent for stage in range(stages)]
    draft_ms = sum(sum(costs.drafting(windows)) for windows in answers.windows) / sent
    token_ms = total / answers.tokens
    return Modelled(
        token_ms=token_ms,
        of_model=token_ms / answers.token_ms,
        against_plain=plain.token_ms / token_ms,
        plain_compute_ms=plain_compute_ms,
        rest_ms=rest_ms,
        compute_ms=sum(compute_ms),
        draft_ms=draft_ms,
        slowest_ms=max([*compute_ms[:-1], compute_ms[-1] + draft_ms]),
    )
