"""Helpers that answer windows by hand, without stages or links."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config.plan import SpeculationPlan
from engine.protocol.messages import Draft, PredictedTokens, StageTime
from engine.speculation.loop import DecodeLoop
from engine.speculation.types import Actions, LoopContext, StopCheck, WindowPlan, never_stop
from tests.speculation.simulator import FakeMtp, ScriptTarget, Simulation

FIXED = SpeculationPlan(strategy="ngram-simple", window_policy="fixed", pipeline_depth=1)


def answer(
    window: WindowPlan,
    predictions: Sequence[int],
    *,
    draft: Draft | None = None,
    stale: bool = False,
    times: tuple[StageTime, ...] = (),
) -> PredictedTokens:
    """The reply to a window."""
    return PredictedTokens(
        0, window.window, window.epoch, window.start, tuple(predictions), draft, stale, times
    )


def agree(window: WindowPlan, last: int) -> list[int]:
    """Predictions that accept every draft of a first window of an epoch, and then `last`."""
    return [*window.tokens[1:], last]


def scripted(
    prompt: Sequence[int],
    continuation: Sequence[int],
    plan: SpeculationPlan,
    *,
    max_tokens: int | None = None,
    stop: StopCheck = never_stop,
    rtt_ms: float = 20.0,
    stages: int = 2,
    mtp: FakeMtp | None = None,
    context_limit: int = 100_000,
    window_rows: int = 64,
) -> Simulation:
    """A request whose answer is `continuation`, over stages that take 3 ms and 1 ms a further row."""
    context = LoopContext(
        prompt=prompt,
        max_tokens=len(continuation) if max_tokens is None else max_tokens,
        context_limit=context_limit,
        window_rows=window_rows,
        native_mtp=mtp is not None,
        stop=stop,
    )
    return Simulation(
        ScriptTarget([*prompt, *continuation]),
        context,
        plan,
        costs=[lambda rows: 2.0 + rows] * stages,
        hops_ms=[rtt_ms / 2] * (stages - 1),
        return_ms=rtt_ms / 2,
        mtp=mtp,
    )


def only_window(actions: Actions) -> WindowPlan:
    """The one window that is to be sent."""
    (window,) = actions.windows
    return window


def plain_loop(prompt: Sequence[int], max_tokens: int = 10, context_limit: int = 1000) -> DecodeLoop:
    """A loop that does not speculate."""
    context = LoopContext(prompt=prompt, max_tokens=max_tokens, context_limit=context_limit)
    return DecodeLoop(SpeculationPlan(strategy="disabled"), context)
