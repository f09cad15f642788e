"""Texts and costs for simulated runs: what the default model costs, and what people ask of it."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

from engine.config.plan import SpeculationPlan
from engine.speculation.costs import CostModel
from engine.speculation.types import LoopContext
from tests.speculation.simulator import CostTable, FakeMtp, Result, ScriptTarget, Simulation

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
WHOLE_MS = (10.8, 21.6, 29.0, 34.0, 50.0, 60.0, 83.0, 110.0)  # docs/speculation.md says where they come from

Text = tuple[list[int], list[int]]  # prompt, answer


def measured_cost(stages: int) -> CostTable:
    """One of so many equal stages of the measured model, for up to 16 rows."""

    def cost(rows: int) -> float:
        place = bisect_left(ROWS, rows)
        if ROWS[place] == rows:
            return WHOLE_MS[place] / stages
        share = (rows - ROWS[place - 1]) / (ROWS[place] - ROWS[place - 1])
        return (WHOLE_MS[place - 1] + share * (WHOLE_MS[place] - WHOLE_MS[place - 1])) / stages

    return cost


def novel(seed: int) -> Text:
    """Nothing to copy from."""
    random = Random(seed)
    return [random.randrange(30_000) for _ in range(200)], [random.randrange(30_000) for _ in range(256)]


def lines(seed: int) -> list[int]:
    """Code-like text: lines of words from a small vocabulary, among them an identifier, 7."""
    random = Random(seed)
    text: list[int] = []
    while len(text) < 300:
        line = [random.randrange(10, 400) for _ in range(random.randint(4, 14))]
        if random.random() < 0.5:
            line[random.randrange(len(line))] = 7
        text += [*line, 0]
    return text


def copy(seed: int) -> Text:
    """Repeat this document."""
    text = lines(seed)
    return [*text, 9999], text


def rename(seed: int) -> Text:
    """Repeat this code with the identifier replaced by one of two tokens."""
    text = lines(seed)
    return [*text, 9999], [part for token in text for part in ((8, 9) if token == 7 else (token,))]


def simulate(
    text: Text,
    rtt_ms: float,
    strategy: str,
    *,
    seed: int = 0,
    stages: int = 2,
    acceptance: float | None = 0.63,
    costs: CostModel | None = None,
    switch_ms: float = 0.0,
    one_device: bool = False,
    behind: bool = True,
    **settings: object,
) -> Result:
    """An answer over measured stages, with 10 % of noise; checked to be the right one. A stage takes
    `switch_ms` more for a window of other rows than the one before it; on `one_device` stages take turns."""
    prompt, answer = text
    context = LoopContext(
        prompt=prompt,
        max_tokens=len(answer),
        context_limit=100_000,
        window_rows=16,
        native_mtp=acceptance is not None,
        drafts_behind=behind and stages > 1,
        costs=costs,
    )
    simulation = Simulation(
        ScriptTarget([*prompt, *answer]),
        context,
        SpeculationPlan(strategy=strategy, **settings),  # type: ignore[arg-type]
        costs=[measured_cost(stages)] * stages,
        hops_ms=[rtt_ms / 2 / max(1, stages - 1)] * (stages - 1),
        return_ms=rtt_ms / 2,
        mtp=None if acceptance is None else FakeMtp(acceptance, seed=seed),
        overhead_ms=0.4,
        switch_ms=switch_ms,
        one_device=one_device,
        noise=0.1,
        seed=seed,
    )
    result = simulation.run()
    assert result.tokens == answer
    assert result.loop.statistics.violations() == []
    return result


def speedup(text: Text, rtt_ms: float, strategy: str, *, seed: int = 0, **settings: object) -> float:
    """How many times faster than plain decoding."""
    plain = simulate(text, rtt_ms, "disabled", seed=seed)
    return plain.elapsed_ms / simulate(text, rtt_ms, strategy, seed=seed, **settings).elapsed_ms  # type: ignore[arg-type]
