"""A discrete-event simulation of stages and links that drives the real `DecodeLoop`.

The target is a fixed function of the text, so a case is exact and fast. A stage keeps the tokens of its cache
as a chain of hashes and checks, for every window it computes, that it is not behind the window and that the
rows it got were computed from the same text: a stage that kept a rejected row is found at the next window.
Times are milliseconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from random import Random

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft, PredictedTokens, StageTime
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import Actions, LoopContext, WindowOutcome, WindowPlan

CostTable = Callable[[int], float]
Condition = Callable[[DecodeLoop], bool]


def never(loop: DecodeLoop) -> bool:
    """A condition that does not come about."""
    return False


LENGTH_BITS = 20


def extend(chain: int, token: int) -> int:
    """The chain of a text with one more token: a hash, and the length in its low bits."""
    length = chain % (1 << LENGTH_BITS) + 1
    return (abs(hash((chain, token))) << LENGTH_BITS) + length


def chain_of(text: Sequence[int]) -> int:
    """The chain of a whole text."""
    return reduce(extend, text, 0)


class Target:
    """The model: the next token is a fixed function of the whole text before it."""

    def next(self, chain: int) -> int:
        raise NotImplementedError

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """What plain decoding yields."""
        chain = chain_of(prompt)
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(self.next(chain))
            chain = extend(chain, tokens[-1])
        return tokens


class RandomTarget(Target):
    """Any text leads to a token below `vocabulary`, or, with a `period`, mostly to that of its length."""

    def __init__(self, vocabulary: int, period: int = 0) -> None:
        self.vocabulary = vocabulary
        self.period = period

    def next(self, chain: int) -> int:
        noise = chain >> LENGTH_BITS
        if self.period and noise % 40:
            return chain % self.period
        return noise % self.vocabulary


class ScriptTarget(Target):
    """After the script's own beginnings comes its next token, after any other text a token from far away."""

    def __init__(self, script: Sequence[int]) -> None:
        self._next: dict[int, int] = {}
        chain = 0
        for token in script:
            self._next[chain] = token
            chain = extend(chain, token)

    def next(self, chain: int) -> int:
        return self._next.get(chain, 1_000_000 + chain % 1000)


@dataclass
class FakeMtp:
    """The head of the last stage: right with the given chance, and if `honest` it says how sure it is."""

    acceptance: float = 0.63
    honest: bool = False
    head_ms: float = 2.4
    catch_up_ms: float = 0.25
    seed: int = 1

    def draft(self, target: Target, chain: int, position: int, budget: int) -> tuple[list[int], list[float]]:
        tokens, probabilities = [], []
        for depth in range(budget):
            random = Random(hash((self.seed, position, depth)))
            chance = random.random() ** (1 / self.acceptance - 1) if self.honest else self.acceptance
            right = random.random() < chance
            token = target.next(chain) if right else 2_000_000 + random.randrange(1000)
            tokens.append(token)
            probabilities.append(chance)
            chain = extend(chain, token)
        return tokens, probabilities if self.honest else []


@dataclass
class FakeDraftRunner:
    """A draft model that is always ready and agrees with the target with the given chance."""

    target: Target
    acceptance: float

    def drafted(self, history: Sequence[int], pending: Sequence[int], budget: int) -> list[int]:
        chain, tokens = chain_of([*history, *pending]), []
        for _ in range(budget):
            token = self.target.next(chain)
            if Random(chain).random() >= self.acceptance:
                token += 1
            tokens.append(token)
            chain = extend(chain, token)
        return tokens


@dataclass
class Message:
    """A window on its way through the stages; `chains` are what a stage hands on instead of activations."""

    plan: WindowPlan
    arrived: float = 0.0
    stale: bool = False
    chains: list[int] | None = None
    times: list[StageTime] = field(default_factory=list)


class FakeStage:
    """A cache, a queue and one worker."""

    def __init__(self, index: int, cost: CostTable, prompt: Sequence[int]) -> None:
        self.index = index
        self.cost = cost
        self.chains = [0]
        for token in prompt:
            self.chains.append(extend(self.chains[-1], token))
        self.queue: deque[Message] = deque()
        self.busy = False
        self.cancelled = -1
        self.computed_rows = 0
        self.shape = 0  # rows of the last window
        self.since_change = 0  # windows of as many rows before it
        self.predicted: tuple[int, int, int] | None = None  # epoch, position and token that may follow
        self.handed_out: tuple[int, Sequence[int]] = (0, ())  # position and tokens of the last draft

    @property
    def length(self) -> int:
        return len(self.chains) - 1

    def trim(self, keep: int) -> None:
        """Keep the first `keep` positions, which must be there."""
        assert self.length >= keep
        del self.chains[keep + 1 :]

    def holds(self, text: Sequence[int]) -> bool:
        """Whether the cache is that of this text, and of nothing more."""
        return self.length == len(text) and self.chains[-1] == chain_of(text)

    def compute(self, message: Message) -> None:
        """Trim to the window's start and append its rows."""
        plan = message.plan
        self.trim(plan.start)
        for token in plan.tokens:
            self.chains.append(extend(self.chains[-1], token))
        rows = self.chains[plan.start + 1 :]
        assert message.chains in (None, rows), f"stage {self.index} has another text than the one before it"
        message.chains = rows
        self.computed_rows += len(rows)


@dataclass
class Result:
    """What a simulated answer was and took."""

    tokens: list[int]
    origins: list[str]
    elapsed_ms: float  # until the last token
    loop: DecodeLoop
    stages: list[FakeStage]
    plans: list[WindowPlan]
    outcomes: list[WindowOutcome]
    finished: str = ""


class Simulation:
    """One request over `costs` stages, one way of `hops_ms` between neighbours, `return_ms` back."""

    def __init__(
        self,
        target: Target,
        context: LoopContext,
        plan: SpeculationPlan,
        *,
        costs: Sequence[CostTable],
        hops_ms: Sequence[float],
        return_ms: float,
        mtp: FakeMtp | None = None,
        overhead_ms: float = 0.2,
        switch_ms: float = 0.0,
        settle_ms: float = 0.0,
        one_device: bool = False,
        jitter_ms: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        fallback: float = 0.0,
    ) -> None:
        self.target = target
        self.context = context
        self.loop = DecodeLoop(plan, context)
        self._costs = costs
        self.stages = self._fresh_stages()
        self._hops_ms = [0.0, *hops_ms, return_ms]
        self._mtp = mtp
        self._overhead_ms = overhead_ms
        self._switch_ms = switch_ms  # of a stage, for a window of other rows than the last one
        self._settle_ms = settle_ms  # .. and for the one after it, of as many
        self._one_device = one_device  # all stages compute on it, one after the other
        self._device_free = 0.0
        self._jitter_ms = jitter_ms
        self._noise = noise
        self._fallback = fallback
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._now = 0.0
        self._link_free = [0.0] * len(self._hops_ms)
        self._not_drafted = 0
        self._result = Result([], [], 0.0, self.loop, self.stages, [], [])

    def run(
        self,
        *,
        cancel: Condition = never,
        lose_stages: Condition = never,
        change_plan: tuple[Condition, SpeculationPlan] | None = None,
    ) -> Result:
        """Run to the end; the first time a condition holds, what it stands for happens."""
        pending: list[tuple[Condition, Callable[[], None]]] = [
            (cancel, lambda: self._perform(self.loop.cancel(self._now / 1000))),
            (lose_stages, self._lose_stages),
        ]
        if change_plan is not None:
            condition, plan = change_plan
            pending.append((condition, lambda: self.loop.update_plan(plan)))
        self._perform(self.loop.start(0.0))
        while not self._result.finished:
            for item in [item for item in pending if item[0](self.loop)]:
                pending.remove(item)
                item[1]()
            if not self._result.finished:
                self._now, _, event = heapq.heappop(self._events)
                event()
        return self._result

    def _fresh_stages(self) -> list[FakeStage]:
        text = self.loop.history[:-1]
        return [FakeStage(index, cost, text) for index, cost in enumerate(self._costs)]

    def _lose_stages(self) -> None:
        self._events.clear()
        self.stages = self._result.stages = self._fresh_stages()
        self._perform(self.loop.restart(self._now / 1000))

    # Coordinator

    def _perform(self, actions: Actions) -> None:
        if actions.cancel_epoch is not None:
            epoch = actions.cancel_epoch
            self._at(self._overhead_ms, lambda: self._cancel(0, epoch))
        for plan in actions.windows:
            message = Message(plan)
            self._result.plans.append(plan)
            self._at(self._overhead_ms, lambda message=message: self._arrive(0, message))
        for item in actions.committed:
            self._result.tokens.append(item.token)
            self._result.origins.append(item.origin)
            self._result.elapsed_ms = self._now
        if actions.done is not None:
            self._result.outcomes.append(actions.done)
        if actions.finished is not None:
            assert not self.loop.in_flight
            self._result.finished = actions.finished

    def _reply(self, reply: PredictedTokens) -> None:
        direct = self._random.random() >= self._fallback
        self._perform(self.loop.on_reply(reply, self._now / 1000, direct=direct))

    # Stages

    def _cancel(self, index: int, epoch: int) -> None:
        self.stages[index].cancelled = max(self.stages[index].cancelled, epoch)
        if index + 1 < len(self.stages):
            self._hop(index + 1, lambda: self._cancel(index + 1, epoch))

    def _arrive(self, index: int, message: Message) -> None:
        message.arrived = self._now
        self.stages[index].queue.append(message)
        self._work(index)

    def _work(self, index: int) -> None:
        stage = self.stages[index]
        while stage.queue and not stage.busy:
            message = stage.queue.popleft()
            if message.stale or message.plan.epoch <= stage.cancelled or self._refuted(index, message):
                message.stale = True
                self._pass_on(index, message)
                continue
            stage.busy = True
            begun = self._now
            stage.compute(message)
            spent = stage.cost(len(message.plan.tokens)) * (1 + self._noise * self._random.random())
            if len(message.plan.tokens) != stage.shape:
                stage.shape, stage.since_change = len(message.plan.tokens), 0
                spent += self._switch_ms
            else:
                stage.since_change += 1
                spent += self._settle_ms if stage.since_change == 1 else 0.0
            draft = None
            if index + 1 == len(self.stages):
                self._predict(message)
                if not message.plan.draft_later:
                    draft, head_ms = self._draft(message)
                    spent += head_ms
            if self._one_device:
                self._device_free = max(self._device_free, begun) + spent
                spent = self._device_free - begun
            self._at(spent, partial(self._done, index, message, begun, draft))

    def _done(self, index: int, message: Message, begun: float, draft: Draft | None) -> None:
        stage = self.stages[index]
        queued, spent = begun - message.arrived, self._now - begun
        message.times.append(StageTime(index, round(queued * 1000), round(spent * 1000), stage.length))
        self._pass_on(index, message, draft)
        if index + 1 == len(self.stages) and message.plan.draft_later:
            self._draft_later(stage, message)
        else:
            self._free(stage)

    def _free(self, stage: FakeStage) -> None:
        stage.busy = False
        self._work(stage.index)

    def _predict(self, message: Message) -> None:
        """Note how the epoch of a window may go on."""
        plan, chains = message.plan, message.chains
        assert chains is not None
        agreed = self._agreed(message)
        token = self.target.next(chains[agreed]) if agreed + 1 == len(plan.tokens) else -1
        self.stages[-1].predicted = plan.epoch, plan.start + agreed + 1, token

    def _refuted(self, index: int, message: Message) -> bool:
        """The last stage knows already that the model says something else."""
        plan, predicted = message.plan, self.stages[index].predicted
        if predicted is None or predicted[0] != plan.epoch:
            return False
        return predicted[1:] != (plan.start, plan.tokens[0])

    def _agreed(self, message: Message) -> int:
        plan, chains = message.plan, message.chains
        assert chains is not None
        agreed = 0
        while agreed + 1 < len(plan.tokens) and self.target.next(chains[agreed]) == plan.tokens[agreed + 1]:
            agreed += 1
        return agreed

    def _draft_later(self, stage: FakeStage, message: Message) -> None:
        """Draft behind the reply, unless the window has confirmed the last draft so far."""
        assert message.chains is not None
        agreed = self._agreed(message)
        position, token = message.plan.start + agreed + 1, self.target.next(message.chains[agreed])
        first, tokens = stage.handed_out
        if 0 <= position - first < len(tokens) and tokens[position - first] == token:
            self._not_drafted += len(message.plan.tokens)
            self._free(stage)
            return
        draft, head_ms = self._draft(message)
        if draft is None:
            self._free(stage)
            return
        if self._one_device:
            self._device_free = max(self._device_free, self._now) + head_ms
            head_ms = self._device_free - self._now
        self._at(head_ms, partial(self._drafted, stage, draft))

    def _drafted(self, stage: FakeStage, draft: Draft) -> None:
        self._hop(stage.index + 1, lambda: self._perform(self.loop.on_draft(draft, self._now / 1000)))
        self._free(stage)

    def _pass_on(self, index: int, message: Message, draft: Draft | None = None) -> None:
        if index + 1 < len(self.stages):
            self._hop(index + 1, lambda: self._arrive(index + 1, message))
            return
        plan = message.plan
        predictions = () if message.stale else tuple(map(self.target.next, message.chains or ()))
        reply = PredictedTokens(
            0, plan.window, plan.epoch, plan.start, predictions, draft, message.stale, tuple(message.times)
        )
        self._hop(index + 1, lambda: self._reply(reply))

    def _draft(self, message: Message) -> tuple[Draft | None, float]:
        plan, chains = message.plan, message.chains
        assert chains is not None
        self._not_drafted += len(plan.tokens)
        if self._mtp is None or not plan.draft_budget:
            return None, 0.0
        agreed = self._agreed(message)
        guess = self.target.next(chains[agreed])
        position = plan.start + agreed + 2
        tokens, probabilities = self._mtp.draft(
            self.target, extend(chains[agreed], guess), position, plan.draft_budget
        )
        head_ms = len(tokens) * self._mtp.head_ms + max(0, self._not_drafted - 1) * self._mtp.catch_up_ms
        self._not_drafted = 0
        self.stages[-1].handed_out = position, tokens
        return Draft(position, guess, tuple(tokens), tuple(probabilities), round(head_ms * 1000)), head_ms

    # Time

    def _hop(self, link: int, event: Callable[[], None]) -> None:
        """Over a link: delayed, never overtaking."""
        delay = self._hops_ms[link] + self._jitter_ms * self._random.random()
        arrival = max(self._now + delay, self._link_free[link])
        self._link_free[link] = arrival
        self._at(arrival - self._now, event)

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self._now + delay, self._number, event))
