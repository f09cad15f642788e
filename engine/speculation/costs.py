"""What a window costs: milliseconds by number of rows, per stage and for the network, learnt from replies.

The model is a property of the machines and not of a request, so a caller may share one between requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.protocol.messages import StageTime

REMEMBERED = 8  # measurements of each number of rows
OPTIMISM = 0.7  # share of the slope seen so far that further rows are expected to cost
NOTABLE = 0.04  # relative change for which tables are made anew
LONG_CATCH_UP = 16  # rows; fewer are part of the price of a draft
SETTLED = 2  # windows of as many rows, after which the next one costs no more than usual
SATURATED = 0.25  # share of its compute that a window has waited at a stage which is never idle
# Priors, as shares of a plain step's compute: one MTP draft, and one row that the head has to catch up on.
DRAFT_SHARE = 0.2
CATCH_UP_SHARE = 0.02


class Timings:
    """The last measurements of one thing.

    Whatever else a machine does makes a measurement longer and never shorter, so the typical value is taken
    from the lower third, not from the mean.
    """

    __slots__ = ("_last", "typical")

    def __init__(self, ms: float) -> None:
        self._last = deque([ms], maxlen=REMEMBERED)
        self.typical = ms

    def add(self, ms: float) -> None:
        """One more measurement."""
        self._last.append(ms)
        self.typical = sorted(self._last)[len(self._last) // 3]


def added(timings: Timings | None, ms: float) -> Timings:
    """The timings with one more, or the first of them."""
    if timings is None:
        return Timings(ms)
    timings.add(ms)
    return timings


class RowCosts:
    """Milliseconds by number of rows. Between measured counts it is linear; a single measured count is
    extended with `growth` times proportionality: 1 for compute (until measured), 0 for the network.

    A GPU keeps the graph of the last batch. A batch of other rows is computed without one, and the next of
    as many rows makes a new one. So the first two windows of as many rows are measured apart: what they take
    more than the others is `switch_ms`.

    Windows that other ones accompany take longer where stages share a device. They tell only of rows that no
    window alone has been measured with, and of changes.
    """

    def __init__(self, growth: float) -> None:
        self._growth = growth
        self._steady: dict[int, Timings] = {}
        self._first: dict[int, Timings] = {}
        self._alone: set[int] = set()
        self._switch: list[Timings | None] = [None, None]  # of the first window, and of the second
        self._shown: dict[int, float] = {}  # what the last table was made from

    def observe(
        self, rows: int, ms: float, *, since_change: int = SETTLED, accompanied: bool = False
    ) -> bool:
        """Add a measurement, after `since_change` windows of as many rows; True when the last table is no
        longer good."""
        if rows in self._alone:
            if accompanied and (since_change or rows not in self._steady):
                return False
        elif not accompanied:
            self._alone.add(rows)
            self._steady.pop(rows, None)
            self._first.pop(rows, None)
        steady = self._steady.get(rows)
        if steady is not None and since_change < SETTLED:
            before = self.switch_ms
            excess = max(0.0, ms - steady.typical)
            self._switch[since_change] = added(self._switch[since_change], excess)
            if abs(self.switch_ms - before) > NOTABLE * steady.typical:
                return True
        if since_change:
            self._steady[rows] = added(steady, ms)
        elif steady is None:
            self._first[rows] = added(self._first.get(rows), ms)
        shown = self._shown.get(rows, 0.0)
        return abs(self._typical(rows) - shown) > NOTABLE * shown

    @property
    def switch_ms(self) -> float:
        """What windows cost more than usual, together, if the one before them had other rows."""
        return sum(timings.typical for timings in self._switch if timings is not None)

    @property
    def largest(self) -> int:
        """The largest number of rows that was measured, 0 if none was."""
        return max((*self._steady, *self._first), default=0)

    def _typical(self, rows: int) -> float:
        """Of a measured number of rows. Where every one was a first, they are no cheaper than fewer rows."""
        steady = self._steady.get(rows)
        if steady is not None:
            return steady.typical
        fewer = (timings.typical for count, timings in self._steady.items() if count < rows)
        switch = self._switch[0].typical if self._switch[0] is not None else 0.0
        return max(self._first[rows].typical - switch, *fewer, 0.0)

    def table(self, most: int) -> list[float]:
        """Milliseconds for 0..most rows; entry 0 is 0, and so are all before the first measurement.

        Rows never cost less together than a part of them, nor more than one by one.
        """
        self._shown = {rows: self._typical(rows) for rows in {*self._steady, *self._first}}
        if not self._shown:
            return [0.0] * (most + 1)
        known = sorted(self._shown.items())
        table = [0.0]
        segment = 0
        for rows in range(1, most + 1):
            while segment < len(known) - 1 and known[segment + 1][0] <= rows:
                segment += 1
            ms = self._at(rows, known, segment)
            table.append(min(ms, rows * table[1]) if self._growth and rows > 1 else ms)
        for rows in range(most - 1, 0, -1):
            table[rows] = min(table[rows], table[rows + 1])
        return table

    def _at(self, rows: int, known: Sequence[tuple[int, float]], segment: int) -> float:
        low, low_ms = known[segment]
        if rows < low:
            return low_ms * (1.0 - self._growth * (low - rows) / low)
        if segment + 1 < len(known):
            high, high_ms = known[segment + 1]
            return low_ms + (high_ms - low_ms) * (rows - low) / (high - low)
        first, first_ms = known[0]
        measured = low > first  # more than one count
        slope = max(0.0, (low_ms - first_ms) / (low - first)) if measured else self._growth * low_ms / low
        return low_ms + OPTIMISM * slope * (rows - low)


@dataclass(frozen=True, slots=True, eq=False)
class LoopTimes:
    """Milliseconds by number of rows: a whole loop of one window, and single stages of it."""

    loop: list[float]
    slowest: list[float]
    first: list[float]
    last: list[float]
    step: float  # compute of a plain step on all stages


class CostModel:
    """See the module docstring."""

    def __init__(self) -> None:
        self._stages: dict[int, RowCosts] = {}
        self._network = RowCosts(growth=0.0)
        self._crowding: dict[int, Timings] = {}  # by rows
        self._least_crowding = 1.0
        self._draft: Timings | None = None
        self._catch_up: Timings | None = None
        self.last_rows = 0  # of the last window that was answered
        self._since_change = 0  # windows of as many rows before that one
        self.switch_ms = 0.0  # what a change of rows costs on all stages together
        # Whole loops of one row, as they were and not put together, so that they can be compared:
        self._beside_drafts: dict[int, Timings] = {}  # by drafts; 0: alone
        self._lags: dict[int, Timings] = {}  # by rows
        self._times = LoopTimes([], [], [], [], 0.0)
        self._changed = True

    def begin_answer(self) -> None:
        """Another answer begins: what drafting costs is measured anew, which takes a draft or two.

        It depends on what else the machines do, and where it was too dear nothing shows that it no longer is.
        """
        self._draft = None
        self._beside_drafts.clear()
        self._lags.clear()

    @property
    def known(self) -> bool:
        """True once a window was measured."""
        return bool(self._stages)

    @property
    def only_single_rows(self) -> bool:
        """True while nothing larger than one row was measured on some stage."""
        return any(stage.largest <= 1 for stage in self._stages.values())

    def observe_stage(
        self,
        stage: int,
        rows: int,
        ms: float,
        *,
        since_change: int = SETTLED,
        accompanied: bool = False,
    ) -> None:
        """Compute of one stage for a window, after `since_change` of as many rows; `accompanied`: others were
        under way."""
        costs = self._stages.get(stage)
        if costs is None:
            costs = self._stages[stage] = RowCosts(growth=1.0)
        self._changed |= costs.observe(rows, ms, since_change=since_change, accompanied=accompanied)

    def observe_window(
        self,
        rows: int,
        times: Sequence[StageTime],
        elapsed_ms: float,
        *,
        head_ms: float = 0.0,
        accompanied: bool = False,
    ) -> None:
        """A window came back after `elapsed_ms`; the last stage's compute contains `head_ms` of drafting."""
        accounted = 0.0
        since_change = self._since_change = self._since_change + 1 if rows == self.last_rows else 0
        self.last_rows = rows
        for time in times:
            accounted += (time.queue_us + time.compute_us) / 1000
            drafting = head_ms if time is times[-1] else 0.0
            compute_ms = max(0.0, time.compute_us / 1000 - drafting)
            self.observe_stage(
                time.stage, rows, compute_ms, since_change=since_change, accompanied=accompanied
            )
        self._changed |= self._network.observe(rows, max(0.0, elapsed_ms - accounted))
        if since_change < SETTLED:  # no other window tells
            self.switch_ms = sum(stage.switch_ms for stage in self._stages.values())

    def observe_spacing(self, rows: int, times: Sequence[StageTime], ms: float) -> None:
        """The last windows of a stream came back `ms` after each other, in the mean.

        Where the last one has waited at its slowest stage, that stage is never idle, and this is what one
        window takes of it: more than its compute if stages share a device, or the coordinator is slow.
        """
        slowest = max(times, key=lambda time: time.compute_us)
        alone_ms = self.times(rows).slowest[rows]
        if alone_ms > 0 and slowest.queue_us >= SATURATED * slowest.compute_us:
            self._crowding[rows] = added(self._crowding.get(rows), max(1.0, ms / alone_ms))
            self._least_crowding = min(timings.typical for timings in self._crowding.values())

    def crowding(self, rows: int) -> float:
        """How many times as long as alone a stage takes for a window of a stream; the least that is known of
        other rows until it is measured."""
        measured = self._crowding.get(rows)
        return measured.typical if measured is not None else self._least_crowding

    def observe_drafting(self, drafts: int, ms: float, skipped: int) -> None:
        """The MTP head took `ms` for this many drafts, after `skipped` rows that it had not been fed."""
        if skipped > LONG_CATCH_UP:
            self._catch_up = added(self._catch_up, max(0.0, ms - self.draft_ms(drafts)) / skipped)
        else:
            self._draft = added(self._draft, ms / drafts)

    def observe_beside_drafts(self, drafts: int, elapsed_ms: float) -> None:
        """A window of one row came back, beside which the last stage has made so many drafts; 0: it was
        alone, beside other windows neither."""
        self._beside_drafts[drafts] = added(self._beside_drafts.get(drafts), elapsed_ms)

    @property
    def beside_drafts_ms(self) -> dict[int, float]:
        """What a window of one row takes longer while the last stage drafts, by number of drafts, as far as
        it is measured."""
        alone = self._beside_drafts.get(0)
        if alone is None:
            return {}
        return {
            drafts: max(0.0, beside.typical - alone.typical)
            for drafts, beside in self._beside_drafts.items()
            if drafts
        }

    def observe_lag(self, rows: int, ms: float) -> None:
        """Drafts in a window of so many rows were answered this long after the window before them."""
        self._lags[rows] = added(self._lags.get(rows), ms)

    def lag_ms(self, rows: int) -> float | None:
        """How long after the window before them drafts in a window of so many rows are answered; None until
        measured."""
        lag = self._lags.get(rows)
        return lag.typical if lag is not None else None

    def draft_ms(self, drafts: int) -> float:
        """What this many MTP drafts cost at the last stage."""
        if not drafts:
            return 0.0
        if self._draft is not None:
            return drafts * self._draft.typical
        return drafts * DRAFT_SHARE * self.times(1).step

    def catch_up_ms(self, skipped: int) -> float:
        """What it costs the MTP head to be fed rows that it has skipped; a few are no matter."""
        if skipped <= LONG_CATCH_UP:
            return 0.0
        each = CATCH_UP_SHARE * self.times(1).step if self._catch_up is None else self._catch_up.typical
        return skipped * each

    def times(self, most: int) -> LoopTimes:
        """Tables for 0..most rows or more. All zero before the first measurement."""
        if self._changed or len(self._times.loop) <= most:
            most = max(1, most, len(self._times.loop) - 1)
            stages = [costs.table(most) for _, costs in sorted(self._stages.items())] or [[0.0] * (most + 1)]
            network = self._network.table(most)
            self._times = LoopTimes(
                loop=[sum(column) for column in zip(network, *stages, strict=True)],
                slowest=[max(column) for column in zip(*stages, strict=True)],
                first=stages[0],
                last=stages[-1],
                step=sum(stage[1] for stage in stages),
            )
            self._changed = False
        return self._times
