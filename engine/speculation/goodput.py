"""The default policy: as wide and as deep as maximises expected committed tokens per expected time.

Notation: S(j) = chance that the first j candidates are all right, L(r) = milliseconds of a whole loop with r
rows, M(r) = those of its slowest stage, D(n) = price of n MTP drafts at the last stage, lambda = tokens per
millisecond of the best way to decode without what is on offer (plain, or MTP drafts of the best length).

- One window with w drafts commits 1 + S(1) + .. + S(w) tokens and takes L(w+1).
- A stream of windows with w drafts, d under way, commits 1 + S(1) + S(2) + .. and takes
  L(w+1) + B * (S(w+1) + S(2w+1) + ..) + waste, where B = max(K(w) M(w), L(w)/d) is the time between replies,
  K(w) >= 1 how much longer a stage takes in a stream than alone (two stages may share one device), and the
  waste is what stages still spend on windows that turn out stale.
- MTP drafts that come behind the reply to their window: `engine.speculation.drafts_behind`.

A window of other rows than the one before it takes longer by what the stages need for the change (much on a
GPU, which keeps the graph of the last batch; next to nothing on a CPU). So each option also pays for the
changes from the last window to its own and from there back to the shape of decoding at lambda.

Options differ in how long they last, so they are compared by tokens - lambda * time (the average-reward
form of tokens per time). What is not worth it by what is known may still be worth finding out: at most
`EXPLORE` of the time goes into such probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from operator import itemgetter

from engine.speculation.acceptance import Acceptance
from engine.speculation.costs import CostModel, LoopTimes
from engine.speculation.drafts_behind import best_way, following_ms, streaming_ms, useful_depth, window_ms
from engine.speculation.policies import PLAIN, Choice, DraftNeed, Offer, Verified
from engine.speculation.statistics import Statistics

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of windows in a stream
SHORTEST_STREAM = 3  # candidates
MARGIN = 0.02  # tokens that an option must be better than plain decoding
WASTE = 0.75  # share of a slowest stage's window that a rejection costs while windows follow each other
HOPE = 1.0  # standard deviations by which drafts may be better than expected, for a probe to be worth it
DISCOVERY = 2  # plain steps' worth of time that may be spent, once, to see what a second row costs
EXPLORE = 0.01  # share of the time
ADVANCE = 16  # tokens that an answer is expected to have at least
WELL_KNOWN = 16  # drafts, after which one more changes little ..
RENEWED = 4  # .. so that the sums are made anew after so many


@dataclass(slots=True)
class _Pace:
    """lambda, and what it was made from."""

    times: LoopTimes | None = None
    seen: int = 0  # drafts of which it is known whether they were right
    tokens_per_ms: float = 0.0
    survivals: list[float] = field(default_factory=list)  # of MTP drafts, by their number
    behind_ms: list[float] = field(default_factory=list)  # with 1, 2, .. drafts behind every reply


class GoodputPolicy:
    """See the module docstring."""

    def __init__(
        self,
        acceptance: Acceptance,
        costs: CostModel,
        counters: Statistics,
        *,
        draft_max: int,
        depth_behind: int = 1,
    ) -> None:
        self._acceptance = acceptance
        self._costs = costs
        self._counters = counters
        self._draft_max = draft_max  # 0 without an MTP head
        self._depth_behind = depth_behind  # windows under way where drafts come behind replies; 1: never
        self._behind = False  # the pace is that of drafts behind replies
        self._explored_ms = 0.0
        self._second_row_due = False  # a draft was asked for to be verified whatever that costs
        self._width = 0
        self._steady_rows = 1  # of the windows that make the pace
        self._paced = _Pace()
        self._stream_pace = 0.0  # tokens per millisecond of the stream that was last thought of

    # Choosing

    def choose(self, offer: Offer) -> Choice:
        """The option of the highest value."""
        if not self._costs.known:
            return Choice(0, 1, "measuring")
        available = len(offer.candidates)
        if not available or not offer.width_limit:
            return PLAIN
        survivals = self._acceptance.survivals(offer.candidates)
        times = self._costs.times(offer.width_limit + 1)
        pace = self._pace(times)
        if offer.joining:
            choice = self._join(offer, survivals, times, pace)
            self._count(choice, offer)
            return choice
        # Without the usual drafts there is no shape to keep: plain decoding may last for long.
        plain_ms = times.loop[1] + (self._changes_ms(1) if offer.candidates[0].source == "mtp" else 0.0)
        # Where a draft will come behind, the next window is the first of those that make the pace.
        plain_worth = 0.0 if offer.awaiting else 1.0 - pace * plain_ms
        _, choice = max(
            (plain_worth + MARGIN, PLAIN),
            self._single(offer, survivals, times, pace),
            self._stream(offer, survivals, times, pace),
            key=itemgetter(0),
        )
        if choice is PLAIN and not offer.sent:
            choice = self._probe(survivals[0], times)
        self._count(choice, offer)
        return choice

    def _changes_ms(self, *rows: int) -> float:
        """What it takes to change to windows of these rows, one after the other, and back to the usual."""
        switch_ms, before, changes = self._costs.switch_ms, self._costs.last_rows, 0
        if not switch_ms:
            return 0.0
        for count in (*rows, self._steady_rows):
            changes += count != before
            before = count
        return switch_ms * changes

    def _single(
        self, offer: Offer, survivals: Sequence[float], times: LoopTimes, pace: float
    ) -> tuple[float, Choice]:
        """The value of the best single window, and the window."""
        best, best_width = -inf, 0
        if not offer.sent:
            tokens = 1.0
            for width, survival in enumerate(survivals[: offer.width_limit], start=1):
                tokens += survival
                value = tokens - pace * (times.loop[width + 1] + self._changes_ms(width + 1))
                if value > best:
                    best, best_width = value, width
        return best, Choice(best_width, 1, "one window")

    def _stream(
        self, offer: Offer, survivals: Sequence[float], times: LoopTimes, pace: float
    ) -> tuple[float, Choice]:
        """The value of the fastest way through all candidates and those that will follow, and the way."""
        if len(survivals) < SHORTEST_STREAM and not offer.sent:
            return -inf, PLAIN
        onward = self._acceptance.rate(offer.candidates[-1]).mean if offer.refillable else 0.0
        shortest, choice = inf, PLAIN
        for width in WIDTHS:
            if width > min(len(survivals), offer.width_limit):
                break
            first = times.loop[width + 1]
            if offer.refillable:
                took = first * (1.0 + _reached(survivals, onward, width + 1, width))
                took += self._changes_ms(width + 1)
                if took < shortest:
                    shortest, choice = took, Choice(width, 1, "windows in turn")
            if offer.depth_limit > 1:
                loop = times.loop[width]
                slowest = max(streaming_ms(self._costs, times, width), 1e-3)
                depth = min(offer.depth_limit, max(2, ceil(loop / slowest)))
                between = max(slowest, loop / depth)
                waste = WASTE * slowest * slowest / between
                took = first + between * _reached(survivals, onward, width, width) + waste
                took += self._changes_ms(width + 1, width)
                if took < shortest:
                    shortest, choice = took, Choice(width, depth, "pipelined")
                    self._stream_pace = width / between
        tokens = 1.0 + sum(survivals) + survivals[-1] * onward / (1.0 - onward)
        return tokens - pace * shortest, choice

    def _join(self, offer: Offer, survivals: Sequence[float], times: LoopTimes, pace: float) -> Choice:
        """Windows of drafts that follow a window of one row, which is under way or was the last to come."""
        sent, unsent = offer.sent, len(survivals) - offer.sent
        if offer.depth_limit < 2 or unsent < 1:
            return PLAIN
        ways = []
        for width in WIDTHS:
            if width > min(unsent, offer.width_limit):
                break
            depth = useful_depth(self._costs, times, width, offer.depth_limit)
            took = following_ms(self._costs, times, survivals, width, depth, sent=sent)
            ways.append((took + self._changes_ms(width), width, depth))
        tokens = sum(survivals[sent:])
        took, width, depth = min(ways)
        if tokens - pace * took <= MARGIN:
            if sent or not self._explores(took - tokens / pace, times):
                return PLAIN
            _, width, depth = ways[0]  # in single rows
        return Choice(width, depth, "drafts behind")

    def _explores(self, loss_ms: float, times: LoopTimes) -> bool:
        """Whether so much may be lost to see again how long drafts take behind a window."""
        if loss_ms > self._allowance(times):
            return False
        self._explored_ms += max(0.0, loss_ms)
        self._counters.probes += 1
        return True

    def _count(self, choice: Choice, offer: Offer) -> None:
        if offer.depth_limit > 1 and len(offer.candidates) >= 3:
            self._counters.pipeline.permits += choice.depth > 1
            self._counters.pipeline.suppressed += choice.depth == 1
        if (
            choice.width < len(offer.candidates) - offer.sent
        ):  # else the candidates were short, not the policy
            self._counters.width.grows += choice.width > self._width
            self._counters.width.shrinks += choice.width < self._width
            self._width = choice.width

    # Drafting

    @property
    def drafts_behind(self) -> bool:
        """Whether drafts are better asked for behind a reply than in it; to learn, always where possible."""
        if self._second_row_due and self._costs.only_single_rows:
            return False
        return self._depth_behind > 1 and (self._behind or self._steady_rows == 1)

    def _pace(self, times: LoopTimes) -> float:
        """lambda: tokens per millisecond of plain decoding, or with MTP drafts of the best length in replies
        or behind them."""
        seen, paced = self._acceptance.drafts_seen, self._paced
        renewed = 1 if seen <= WELL_KNOWN else RENEWED
        if paced.times is not times or seen - paced.seen >= renewed:
            paced.times, paced.seen = times, seen
            paced.survivals = self._acceptance.draft_survivals(min(self._draft_max, len(times.loop) - 2))
            together = self._draft_rates(times.loop, paced.survivals)
            behind = max(self._rates_behind(times), default=0.0)
            usual = behind if self._behind else together[self._steady_rows - 1]  # tables never get shorter
            best = max(behind, *together)
            if (best - usual) * ADVANCE > best * usual * self._costs.switch_ms:
                self._behind = behind == best
                self._steady_rows = 1 if self._behind else together.index(best) + 1
                usual = best
            paced.tokens_per_ms = usual
        return paced.tokens_per_ms

    def _rates_behind(self, times: LoopTimes) -> list[float]:
        """Tokens per millisecond with 1, 2, .. MTP tokens behind every reply; none where that cannot be."""
        paced, rates = self._paced, list[float]()
        paced.behind_ms.clear()
        if self._depth_behind < 2:
            return rates
        for drafts in range(1, len(paced.survivals) + 1):
            took, _ = best_way(self._costs, times, paced.survivals[:drafts], self._depth_behind)
            took += window_ms(self._costs, times, drafts)
            paced.behind_ms.append(took)
            rates.append((1.0 + sum(paced.survivals[:drafts])) / max(took, 1e-6))
        return rates

    def _draft_rates(self, loop_ms: Sequence[float], survivals: Sequence[float]) -> list[float]:
        """Tokens per millisecond when every window asks for, and verifies, 0, 1, .. MTP tokens, which are all
        right with these chances."""
        tokens = 1.0
        rates = [1.0 / max(loop_ms[1], 1e-6)]
        for drafts, survival in enumerate(survivals, start=1):
            tokens += survival
            rates.append(tokens / (loop_ms[drafts + 1] + self._costs.draft_ms(drafts)))
        return rates

    def draft_budget(self, need: DraftNeed) -> int:
        """As many drafts as are worth their price at the last stage, weighed by the chance to need them."""
        if not self._costs.known:
            return 0
        most = min(self._draft_max, need.limit)
        times = self._costs.times(most + 1)
        pace = self._pace(times)
        best = self._best_draft(need, times, pace, most)
        if best and not self._pays_back(need, times, pace):
            return 0
        if best and need.fresh >= 1.0 and self._second_row_falls_due(times):
            return 1
        if best == 0 and need.fresh >= 1.0 and most > 0:
            self._acceptance.at_depth(0).forget()
            best = self._draft_probe(need, times, most)
        return best

    def _best_draft(self, need: DraftNeed, times: LoopTimes, pace: float, most: int) -> int:
        """How many drafts, at most so many, are worth the most beyond their price; 0 if none are."""
        price = max(pace, self._stream_pace) if need.streaming else pace  # of a millisecond, in tokens
        best, best_worth, tokens = 0, 0.0, 0.0
        for drafts, survival in enumerate(self._paced.survivals[:most], start=1):
            tokens += survival
            longer_ms, head_ms = self._draft_takes_ms(need, times, drafts)
            worth = need.fresh * (tokens - pace * longer_ms) - price * head_ms
            if worth > best_worth:
                best, best_worth = drafts, worth
        return best

    def _draft_takes_ms(self, need: DraftNeed, times: LoopTimes, drafts: int) -> tuple[float, float]:
        """What it takes to verify so many drafts instead of decoding plainly, and what it takes to make them,
        which is lost also if they are not needed."""
        if self._behind:
            longer_ms = self._paced.behind_ms[drafts - 1] - times.loop[1]
            if not need.streaming:
                return longer_ms, 0.0  # other stages compute meanwhile
        else:
            longer_ms = times.loop[drafts + 1] - times.loop[1]
            longer_ms += self._changes_ms(drafts + 1) - self._changes_ms(1)
        return longer_ms, self._costs.draft_ms(drafts)

    def _pays_back(self, need: DraftNeed, times: LoopTimes, pace: float) -> bool:
        """Whether drafting from here on saves more than it takes the head to catch up.

        An answer is expected to go on for as long as it has lasted, and for `ADVANCE` tokens at least.
        """
        expected = min(need.remaining, max(ADVANCE, self._counters.emitted))
        saved_ms = expected * (times.loop[1] - 1.0 / pace)
        return saved_ms >= self._costs.catch_up_ms(need.skipped)

    # Exploring

    def _allowance(self, times: LoopTimes) -> float:
        """Milliseconds that probes may still cost."""
        elapsed = self._counters.pipeline.seconds * 1000
        return EXPLORE * (elapsed + ADVANCE * times.loop[1]) - self._explored_ms

    def _draft_probe(self, need: DraftNeed, times: LoopTimes, most: int) -> int:
        """One draft, only to see how good drafts are, where they would pay if they were very good."""
        if self.drafts_behind and not self._costs.only_single_rows:
            return self._probe_behind(need, times)
        second_row = self._costs.only_single_rows
        head_ms = self._costs.draft_ms(1) + self._costs.catch_up_ms(need.skipped)
        price, allowance = head_ms, self._allowance(times)
        if second_row:  # the draft is to be verified as well, to see what that costs
            price += self._probe_loss(self._acceptance.at_depth(0).mean, times)
            allowance = max(allowance, DISCOVERY * times.loop[1])
        if price > allowance:
            return 0
        best_case = times.loop
        if second_row:  # further rows may cost next to nothing
            best_case = [times.loop[1]] * len(times.loop)
        hoped = self._acceptance.draft_survivals(min(most, len(best_case) - 2), HOPE)
        rates = self._draft_rates(best_case, hoped)
        if max(rates) <= rates[0]:
            return 0
        self._explored_ms += head_ms
        self._second_row_due = second_row
        self._counters.probes += 1
        return 1

    def _second_row_falls_due(self, times: LoopTimes) -> bool:
        """Drafts behind replies need no window of two rows, but the next one shall show, alone, what they
        cost: a draft in the reply might be better, and n-gram drafts be worth sending."""
        if not self._behind or not self._costs.only_single_rows:
            return False
        self._second_row_due = self._explored_ms < DISCOVERY * times.loop[1]
        return self._second_row_due

    def _probe_behind(self, need: DraftNeed, times: LoopTimes) -> int:
        """The same for drafts behind a reply, which cost nothing where other stages compute longer."""
        price = window_ms(self._costs, times, 1) - times.loop[1] + self._costs.catch_up_ms(need.skipped)
        if price > self._allowance(times):
            return 0
        self._explored_ms += price
        self._counters.probes += price > 0
        return 1

    def _probe(self, survival: float, times: LoopTimes) -> Choice:
        """A window with one draft, to see what a second row costs."""
        if not self._costs.only_single_rows:
            return PLAIN
        if not self._second_row_due and self._probe_loss(survival, times) > self._allowance(times):
            return PLAIN
        self._second_row_due = False
        self._counters.probes += 1
        return Choice(1, 1, "probe", probe=True)

    def _probe_loss(self, survival: float, times: LoopTimes) -> float:
        """Milliseconds that a window with one draft is expected to lose against plain decoding."""
        changes_ms = self._changes_ms(2) - self._changes_ms(1)
        return max(0.0, times.loop[2] + changes_ms - (1.0 + survival) * times.loop[1])

    def verified(self, window: Verified) -> None:
        """Charge what the verification of a probe has cost."""
        if window.probe:
            plain_ms = window.committed * self._costs.times(1).loop[1]
            self._explored_ms += max(0.0, window.elapsed_ms - plain_ms)


def _reached(survivals: Sequence[float], onward: float, first: int, step: int) -> float:
    """Expected number of windows, after the first one, whose first candidate is right: candidate number
    `first` (from 0) and every `step` on. Those out of sight are right with chance `onward` each."""
    inside = survivals[first::step]
    total = sum(inside)
    if onward:
        following = first + len(inside) * step - len(survivals) + 1
        total += survivals[-1] * onward**following / (1.0 - onward**step)
    return total
