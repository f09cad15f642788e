"""Which windows to send: asks the drafter for candidates and the policy for widths, and fills the pipeline.

The first window of an epoch holds the newest committed token and then drafts; those that continue it hold
further drafts only, so windows never overlap. At most `pipeline_depth` windows are under way, stale ones
included: a new epoch always finds the place of the window whose reply ended the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft
from engine.speculation.acceptance import Acceptance
from engine.speculation.costs import CostModel
from engine.speculation.gate import PipelineGate
from engine.speculation.goodput import GoodputPolicy
from engine.speculation.pipeline import Pipeline
from engine.speculation.policies import (
    HORIZON,
    PLAIN,
    AdaptivePolicy,
    Choice,
    DraftNeed,
    FixedPolicy,
    Offer,
    WindowPolicy,
)
from engine.speculation.statistics import Statistics
from engine.speculation.strategies import make_drafter, resolve_strategy
from engine.speculation.stream import Candidate, Stream
from engine.speculation.types import LoopContext, WindowPlan

PROMPT = Choice(0, 1, "end of the prompt")


class Scheduler:
    """Owns the candidates and the windows under way of one request."""

    def __init__(
        self, plan: SpeculationPlan, context: LoopContext, history: list[int], statistics: Statistics
    ) -> None:
        self.costs = context.costs if context.costs is not None else CostModel()
        self.costs.begin_answer()
        self.stream = Stream()
        self.pipeline = Pipeline(context.first_window, context.first_epoch, statistics)
        self._context = context
        self._history = history
        self._statistics = statistics
        self._acceptance = Acceptance()
        self.rows_not_drafted = context.rows_not_drafted  # rows that the MTP head has not been fed
        self.awaiting = False  # a draft is to come behind the last reply
        self._joined = False  # drafts have joined the window of one row that began the epoch
        self.configure(plan)

    def configure(self, plan: SpeculationPlan) -> None:
        """Use these settings from the next window on."""
        context = self._context
        self.resolved = resolve_strategy(
            plan.strategy,
            native_mtp=context.native_mtp,
            can_rollback=context.can_rollback,
            window_rows=context.window_rows,
            draft_model=context.draft_runner is not None,
        )
        strategy = self.resolved.strategy
        self.plain = strategy == "disabled"  # nothing to draft and nothing to choose
        self.drafter = make_drafter(
            strategy, plan, self._history, context, self._statistics, self._acceptance
        )
        self.drafter.observe()
        self.policy = self._make_policy(plan)
        self._draft_max = plan.draft_max
        self._width_limit = max(0, min(plan.window_max, context.window_rows - 1))
        self._depth_limit = 1 if self.plain else plan.pipeline_depth
        counters = self._statistics.pipeline
        counters.depth_max = max(counters.depth_max, self._depth_limit)

    def _make_policy(self, plan: SpeculationPlan) -> WindowPolicy:
        if plan.window_policy == "goodput":
            draft_max = plan.draft_max if self.drafter.mtp is not None else 0
            return GoodputPolicy(
                self._acceptance,
                self.costs,
                self._statistics,
                draft_max=draft_max,
                depth_behind=plan.pipeline_depth if self._context.drafts_behind else 1,
            )
        gate = PipelineGate(self._acceptance, self.costs, self._statistics.pipeline)
        if plan.window_policy == "adaptive":
            return AdaptivePolicy(plan, gate, self._statistics.width)
        return FixedPolicy(plan, gate)

    def first_window(self, now: float, room: int) -> WindowPlan:
        """The last token of the prompt, and nothing else: it is computed as the end of the prefill."""
        self._begin_epoch()
        budget = self._draft_budget((), PROMPT, room)
        window = self._send(len(self._history) - 1, (self._history[-1],), (), PROMPT, budget, now)
        self.pipeline.flights[-1].ends_prompt = True
        return window

    def next_windows(self, now: float, room: int) -> tuple[WindowPlan, ...]:
        """What to send now, when at most `room` candidates can still be of use."""
        if self.plain and not self.pipeline.live:
            self.stream.clear()
            self._begin_epoch()
            return (self._send(len(self._history) - 1, (self._history[-1],), (), PLAIN, 0, now),)
        windows: list[WindowPlan] = []
        if not self.pipeline.live:
            choice = self._open_epoch(windows, now, room)
        elif self._may_continue(room):
            choice = self._choose(room)
        else:
            return ()
        if choice.depth > 1:
            self._continue_epoch(choice, windows, now, room)
        else:
            self.pipeline.feed(0)
        return tuple(windows)

    # The first window of an epoch

    def _begin_epoch(self) -> None:
        self.pipeline.begin_epoch()
        self._joined = False

    def _open_epoch(self, windows: list[WindowPlan], now: float, room: int) -> Choice:
        self._begin_epoch()
        mtp = self.drafter.mtp
        if mtp is not None and mtp.cooling:
            self.stream.clear()
            choice = Choice(0, 1, "cooldown")
            wanted = mtp.plain_step() and not mtp.cooling
        else:
            self._gather(room)
            choice = self._choose(room)
            wanted = True
        drafts = self.stream.take(choice.width)
        budget = self._draft_budget(drafts, choice, room) if wanted else 0
        tokens = (self._history[-1], *(draft.token for draft in drafts))
        windows.append(self._send(len(self._history) - 1, tokens, drafts, choice, budget, now))
        return choice

    def _gather(self, room: int) -> None:
        """Candidates for a new epoch: a new draft, or what is left of the last proposal, or a new one."""
        mtp = self.drafter.mtp
        if mtp is not None and mtp.ready:
            self.stream.clear()
        if not len(self.stream):
            self.stream.extend(self.drafter.propose(room))
        elif len(self.stream) < self._width_limit and not self.drafter.composite_open:
            self._refill(room)

    # Windows that continue it

    def join(self, draft: Draft, now: float, room: int) -> tuple[WindowPlan, ...]:
        """A draft has come: send it behind the window that it follows, if that holds one row, the newest
        token, and is under way alone."""
        if self.stream.sent or self.pipeline.live != 1:
            return ()
        opened = self.pipeline.flights[-1]
        opened.beside_drafts = len(draft.tokens)  # whatever becomes of them
        mtp = self.drafter.mtp
        if mtp is None or mtp.cooling:
            return ()
        mtp.offer(draft, self._history)
        if not mtp.ready:
            return ()
        self._joined = True
        self.stream.clear()
        self.stream.extend(self.drafter.propose(room))
        opened.followed = self.stream.unsent > 0
        choice = self._choose(room)
        windows: list[WindowPlan] = []
        if choice.depth > 1:
            before = len(self.pipeline)
            self._continue_epoch(choice, windows, now, room)
            if windows:
                self.pipeline.flights[before].joined = True
        return tuple(windows)

    def _may_continue(self, room: int) -> bool:
        """Whether there is a place for a window and something to put into it."""
        if self._depth_limit < 2 or len(self.pipeline) >= self._depth_limit:
            return False
        if not self.stream.unsent:
            self._refill(room)
        if not self.stream.unsent:
            self.pipeline.feed(0)
        return self.stream.unsent > 0

    def _continue_epoch(self, choice: Choice, windows: list[WindowPlan], now: float, room: int) -> None:
        self.pipeline.feed(choice.depth)
        while self.pipeline.live < choice.depth and len(self.pipeline) < self._depth_limit:
            if self.stream.unsent < choice.width:
                self._refill(room)
            start = len(self._history) + self.stream.sent
            drafts = self.stream.take(choice.width)
            if not drafts:
                self.pipeline.feed(0)
                break
            self.pipeline.flights[-1].followed = True
            tokens = tuple(draft.token for draft in drafts)
            budget = self._draft_budget(drafts, choice, room)
            windows.append(self._send(start, tokens, drafts, choice, budget, now))
        if not self.stream.unsent and not self.drafter.may_extend(self.stream.last()):
            self.pipeline.feed(0)

    def _refill(self, room: int) -> None:
        if self.drafter.may_extend(self.stream.last()):
            self.stream.extend(self.drafter.refill(self.stream.pending(), room - len(self.stream)))

    # Both

    def _choose(self, room: int) -> Choice:
        last = self.stream.last()
        return self.policy.choose(
            Offer(
                candidates=self.stream.ahead(HORIZON),
                sent=self.stream.sent,
                refillable=self.drafter.may_extend(last) and len(self.stream) < room,
                width_limit=self._width_limit,
                depth_limit=self._depth_limit,
                joining=self._joined,
                awaiting=self.awaiting,
            )
        )

    def _draft_budget(self, drafts: Sequence[Candidate], choice: Choice, room: int) -> int:
        """MTP tokens to ask for with the window of `drafts`, which were just taken from the stream."""
        if self.drafter.mtp is None:
            return 0
        limit = min(self._draft_max, self._width_limit, room - self.stream.sent - 1)
        if limit <= 0:
            return 0
        last = self.stream.last()
        goes_on = self.stream.unsent > 0 or (choice.depth > 1 and self.drafter.may_extend(last))
        # The head drafts behind its own drafts only where one was wrong, and then no window waits for it.
        streaming = choice.depth > 1 and not (self._joined and last is not None and last.source == "mtp")
        fresh = 1.0
        if drafts and goes_on:  # then they are needed only if the stream breaks off in this very window
            survivals = [1.0, *self._acceptance.survivals(self.stream.ahead(self.stream.sent + 1))]
            fresh = survivals[self.stream.sent - len(drafts)] - survivals[-1]
        return self.policy.draft_budget(
            DraftNeed(fresh, limit, streaming, self.rows_not_drafted, remaining=room)
        )

    def _send(
        self,
        start: int,
        tokens: tuple[int, ...],
        drafts: Sequence[Candidate],
        choice: Choice,
        draft_budget: int,
        now: float,
    ) -> WindowPlan:
        plan = self.pipeline.send(
            start,
            tokens,
            drafts,
            now,
            draft_budget=draft_budget,
            draft_later=draft_budget > 0 and self.policy.drafts_behind,
            reason=choice.reason,
            probe=choice.probe,
        )
        self.pipeline.flights[-1].followed = self.stream.unsent > 0
        return plan
