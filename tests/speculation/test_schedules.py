"""Whatever the strategy, width, depth, delays and rejections: the answer is the target's own."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.plan import STRATEGIES, WINDOW_POLICIES, SpeculationPlan
from engine.speculation.types import LoopContext
from tests.speculation.simulator import CostTable, FakeDraftRunner, FakeMtp, RandomTarget, Result, Simulation

seeds = st.integers(
    0, 2**32 - 1
)  # everything is drawn from it, evenly: hypothesis prefers the small and plain


def any_plan(random: Random) -> SpeculationPlan:
    """Settings of any kind."""
    return SpeculationPlan(
        strategy=random.choice(STRATEGIES),
        window_policy=random.choice(WINDOW_POLICIES),
        window_max=random.randint(1, 16),
        pipeline_depth=random.randint(1, 8),
        draft_max=random.randint(1, 6),
        draft_min=random.randint(0, 1),
        ngram_min=random.randint(1, 4),
        reject_cooldown_tokens=random.choice([0, 0, 1, 4]),
        suppress_cooldown_draft_limit=random.randint(0, 3),
        extension_initial=random.randint(1, 4),
        tail_backoff_proposals=random.randint(0, 3),
    )


def affine_cost(base_ms: float, growth: float) -> CostTable:
    """A stage on which every further row costs `growth` times the first."""
    return lambda rows: base_ms * (1 + (rows - 1) * growth)


def any_simulation(random: Random) -> Simulation:
    """A request of any kind; small vocabularies make n-grams match, rightly and wrongly."""
    target = RandomTarget(random.choice([2, 3, 50]), period=random.choice([0, 5, 20, 20]))
    prompt = [random.randint(0, 2) for _ in range(random.randint(1, 9))]
    prompt += target.answer(prompt, random.randint(0, 60))
    context = LoopContext(
        prompt=prompt,
        max_tokens=random.choice([1, 2, 40, 60, 60, 80, 80, 120]),
        context_limit=len(prompt) + random.choice([1, 2, 30, 70, 90, 200, 200]),
        window_rows=random.choice([1, 2, 4, 17, 17, 17, 17, 17]),
        native_mtp=random.random() < 0.7,
        can_rollback=random.random() < 0.95,
        draft_runner=FakeDraftRunner(target, random.random()) if random.random() < 0.7 else None,
    )
    n_stages = random.randint(1, 4)
    return Simulation(
        target,
        context,
        any_plan(random),
        costs=[affine_cost(random.uniform(0.5, 20), random.random()) for _ in range(n_stages)],
        hops_ms=[random.choice([0.0, random.uniform(0, 60)]) for _ in range(n_stages - 1)],
        return_ms=random.choice([0.0, random.uniform(0, 60)]),
        mtp=FakeMtp(acceptance=random.uniform(0.05, 1.0), honest=random.random() < 0.5),
        jitter_ms=random.choice([0.0, random.uniform(0, 20)]),
        noise=random.random(),
        seed=random.randrange(1000),
        fallback=random.choice([0.0, 0.5]),
    )


def check_end(simulation: Simulation, result: Result) -> None:
    """What holds at the end of any request."""
    loop, context = simulation.loop, simulation.context
    expected = simulation.target.answer(context.prompt, len(result.tokens))
    assert result.tokens == expected
    assert loop.history == [*context.prompt, *expected]
    assert loop.statistics.violations() == []
    assert loop.statistics.emitted == len(result.tokens)
    for stage in result.stages:
        stage.trim(loop.kv_length)
        assert stage.holds(loop.history[: loop.kv_length])
    for plan in result.plans:
        assert 1 <= len(plan.tokens) <= context.window_rows
        assert plan.start + len(plan.tokens) <= context.context_limit
        assert plan.in_flight <= loop.statistics.pipeline.depth_max


@settings(max_examples=300, deadline=None)
@given(seed=seeds)
def test_the_answer_is_the_targets_own(seed: int) -> None:
    simulation = any_simulation(Random(seed))
    result = simulation.run()
    check_end(simulation, result)
    context = simulation.context
    room = context.context_limit - len(context.prompt)
    assert len(result.tokens) == min(context.max_tokens, room)
    assert result.finished == ("length" if context.max_tokens <= room else "context")


@settings(max_examples=100, deadline=None)
@given(seed=seeds, after=st.integers(0, 60))
def test_a_cancelled_answer_is_a_beginning_of_it(seed: int, after: int) -> None:
    simulation = any_simulation(Random(seed))
    result = simulation.run(cancel=lambda loop: loop.statistics.emitted >= after)
    check_end(simulation, result)
    assert result.finished in ("cancelled", "length", "context")


@settings(max_examples=100, deadline=None)
@given(seed=seeds, after=st.integers(0, 60))
def test_lost_stages_change_nothing(seed: int, after: int) -> None:
    """All windows under way are lost; fresh stages are prefilled with the committed tokens."""
    simulation = any_simulation(Random(seed))
    result = simulation.run(lose_stages=lambda loop: loop.statistics.emitted >= after)
    check_end(simulation, result)
    assert result.finished in ("length", "context")


@settings(max_examples=100, deadline=None)
@given(seed=seeds, after=st.integers(0, 60))
def test_settings_may_change_under_way(seed: int, after: int) -> None:
    random = Random(seed)
    simulation = any_simulation(random)
    result = simulation.run(change_plan=(lambda loop: loop.statistics.emitted >= after, any_plan(random)))
    check_end(simulation, result)


def test_the_schedules_reach_every_part_of_the_loop() -> None:
    """Guards the tests above against generating only the harmless."""
    seen: dict[str, int] = {}
    for seed in range(400):
        statistics = any_simulation(Random(seed)).run().loop.statistics
        pipeline = statistics.pipeline
        for name, happened in {
            "accepted mtp": statistics.sources["mtp"].accepted,
            "accepted ngram": statistics.sources["ngram"].accepted,
            "accepted draft": statistics.sources["draft"].accepted,
            "rejected": statistics.rejected_windows,
            "deep": pipeline.in_flight_max > 2,
            "stale": pipeline.stale_windows > 2,
            "refilled": pipeline.refills,
            "cooled": statistics.cooldowns,
            "suppressed": statistics.suppressed_drafts,
            "backed off": statistics.tail_backoffs,
            "agreed": statistics.anchor_agreements,
            "disagreed": statistics.anchor_disagreements,
            "permitted": pipeline.permits,
            "gated": pipeline.suppressed,
            "probed": statistics.probes,
            "fell back": statistics.fallback_replies,
        }.items():
            seen[name] = seen.get(name, 0) + bool(happened)
    assert all(count >= 3 for count in seen.values()), sorted(seen.items(), key=str)
