"""Whatever the strategy, width, depth, delays and rejections: the answer is the target's own."""

from __future__ import annotations

from dataclasses import replace
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


def any_simulation(random: Random, *, behind: bool = False) -> Simulation:
    """A request of any kind; small vocabularies make n-grams match, rightly and wrongly. `behind`: one whose
    drafts can come behind replies."""
    target = RandomTarget(random.choice([2, 3, 50]), period=random.choice([0, 5, 20, 20]))
    prompt = [random.randint(0, 2) for _ in range(random.randint(1, 9))]
    prompt += target.answer(prompt, random.randint(0, 60))
    n_stages = random.randint(1 + behind, 4)
    context = LoopContext(
        prompt=prompt,
        max_tokens=random.choice([1, 2, 40, 60, 60, 80, 80, 120]),
        context_limit=len(prompt) + random.choice([1, 2, 30, 70, 90, 200, 200]),
        window_rows=random.choice([1, 2, 4, 17, 17, 17, 17, 17]),
        native_mtp=behind or random.random() < 0.7,
        drafts_behind=n_stages > 1 and (behind or random.random() < 0.8),
        can_rollback=random.random() < 0.95,
        draft_runner=FakeDraftRunner(target, random.random()) if random.random() < 0.7 else None,
    )
    plan = any_plan(random)
    if behind:
        strategy = random.choice([name for name in STRATEGIES if name == "auto" or "mtp" in name])
        plan = replace(plan, strategy=strategy, window_policy="goodput")
    return Simulation(
        target,
        context,
        plan,
        costs=[affine_cost(random.uniform(0.5, 20), random.random()) for _ in range(n_stages)],
        hops_ms=[random.choice([0.0, random.uniform(0, 60)]) for _ in range(n_stages - 1)],
        return_ms=random.choice([0.0, random.uniform(0, 60)]),
        mtp=FakeMtp(
            acceptance=random.uniform(0.05, 1.0),
            honest=random.random() < 0.5,
            head_ms=random.choice([0.5, 2.4, random.uniform(0, 40)]),
        ),
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


@settings(max_examples=200, deadline=None)
@given(seed=seeds)
def test_drafts_behind_replies_change_no_answer(seed: int) -> None:
    simulation = any_simulation(Random(seed), behind=True)
    check_end(simulation, simulation.run())


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
        result = any_simulation(Random(seed), behind=seed % 2 == 0).run()
        statistics = result.loop.statistics
        pipeline = statistics.pipeline
        behind = [plan for plan in result.plans if plan.reason == "drafts behind"]
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
            "asked for drafts behind the reply": any(plan.draft_later for plan in result.plans),
            "sent drafts that came behind": behind,
            ".. in wide windows": any(plan.width > 1 for plan in behind),
            ".. several under way": any(plan.in_flight > 2 for plan in behind),
        }.items():
            seen[name] = seen.get(name, 0) + bool(happened)
    assert all(count >= 3 for count in seen.values()), sorted(seen.items(), key=str)
