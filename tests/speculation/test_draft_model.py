"""Drafts of a second model, which come when they come."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import StageTime
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import LoopContext
from tests.speculation.driving import agree, answer, only_window
from tests.speculation.simulator import FakeDraftRunner, ScriptTarget, Simulation

COMPUTE = (StageTime(0, 0, 5000), StageTime(1, 0, 5000))


class LateRunner:
    """Has drafted what a test gives it, and nothing else."""

    def __init__(self) -> None:
        self.ready: dict[int, list[int]] = {}  # by length of the text that the drafts follow
        self.asked: list[int] = []

    def drafted(self, history: Sequence[int], pending: Sequence[int], budget: int) -> list[int]:
        length = len(history) + len(pending)
        self.asked.append(length)
        return self.ready.get(length, [])[:budget]


def loop_with(runner: LateRunner, depth: int) -> DecodeLoop:
    plan = SpeculationPlan(strategy="draft", window_policy="fixed", window_max=3, pipeline_depth=depth)
    context = LoopContext(prompt=[1, 2], max_tokens=50, context_limit=99, window_rows=8, draft_runner=runner)
    return DecodeLoop(plan, context)


def test_drafts_that_are_ready_go_into_the_next_window() -> None:
    runner = LateRunner()
    loop = loop_with(runner, depth=1)
    runner.ready[3] = [4, 5]
    window = only_window(loop.on_reply(answer(only_window(loop.start(0.0)), [3]), 1.0))
    assert (window.tokens, window.sources) == ((3, 4, 5), (("draft", 2),))
    actions = loop.on_reply(answer(window, agree(window, 6)), 2.0)
    assert [item.origin for item in actions.committed] == ["draft", "draft", "free"]


def test_the_loop_does_not_wait_for_drafts() -> None:
    runner = LateRunner()
    loop = loop_with(runner, depth=1)
    window = only_window(loop.on_reply(answer(only_window(loop.start(0.0)), [3]), 1.0))
    assert window.width == 0
    assert runner.asked == [3]  # it has been told where to go on


def test_drafts_that_come_late_continue_the_window_under_way() -> None:
    """Once the model has been right a few times, its drafts are sent behind a window without waiting."""
    runner = LateRunner()
    runner.ready = {length: [length + 1] for length in range(3, 23)}
    loop = loop_with(runner, depth=2)
    actions = loop.on_reply(answer(only_window(loop.start(0.0)), [3]), 0.1)
    now = 0.1
    while len(loop.history) < 23:
        window = only_window(actions)
        assert window.width == 1
        now += 0.1
        last = window.start + 3  # the text counts: token n is at position n - 1
        actions = loop.on_reply(answer(window, agree(window, last), times=COMPUTE), now)
    window = only_window(actions)
    assert window.width == 0  # nothing was ready
    runner.ready[23] = [24, 25, 26]
    following = only_window(loop.drafts_ready(now + 0.01))
    assert (following.epoch, following.start, following.tokens) == (window.epoch, 23, (24,))


def test_an_answer_with_a_draft_model_is_the_targets_own() -> None:
    answer_tokens = [number * 7 % 31 for number in range(80)]
    target = ScriptTarget([1, 2, *answer_tokens])
    for acceptance in (0.0, 0.5, 1.0):
        context = LoopContext(
            prompt=[1, 2],
            max_tokens=80,
            context_limit=999,
            window_rows=8,
            draft_runner=FakeDraftRunner(target, acceptance),
        )
        simulation = Simulation(
            target,
            context,
            SpeculationPlan(strategy="draft"),
            costs=[lambda rows: 4.0 + rows] * 2,
            hops_ms=[10.0],
            return_ms=10.0,
        )
        assert simulation.run().tokens == answer_tokens
        drafts = simulation.loop.statistics.sources["draft"]
        assert drafts.accepted == (drafts.proposed if acceptance == 1.0 else drafts.accepted)
        assert (drafts.accepted > 50) == (acceptance == 1.0)
