"""Where an arm's tokens part from plain decoding's, and how near a tie the target was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from engine.bench.arms import Arm, Kind
from engine.bench.measurement import Measurement
from engine.bench.session import Session, Step
from engine.bench.summary import plain_of
from engine.compute.whole_loop import PlainLoop


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one between two answers. `gap`: by how much the likeliest logit exceeded the second there."""

    arm: str
    reference: str
    workload: str
    turn: int
    position: int  # in the answer
    ours: int  # token; -1: the answer had ended
    theirs: int
    gap: float


def reference_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Whose tokens an arm must have: those of llama.cpp's plain loop with as many threads, where there is
    one, else those of plain decoding over the same stages. None for a reference itself."""
    whole = [other for other in arms if other.kind is Kind.WHOLE]
    same = [other for other in whole if other.threads == arm.threads] or whole
    reference = same[0] if same else plain_of(arm, arms)
    return reference if reference != arm else None


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, int, int] | None:
    """Position and both tokens (-1: none) where two answers part; None if they are equal."""
    pairs = enumerate(zip_longest(ours, theirs, fillvalue=-1))
    return next(((at, a, b) for at, (a, b) in pairs if a != b), None)


def find_differences(session: Session, measurements: Sequence[Measurement]) -> list[Difference]:
    """The first difference of each arm and workload, of all rounds; later turns follow from it."""
    by_key = {measurement.key: measurement for measurement in measurements}
    arms = {arm.name: (arm, reference_of(arm, session.arms)) for arm in session.arms}
    found: dict[tuple[str, str], tuple[Measurement, Measurement, int, tuple[int, int, int]]] = {}
    for ours in measurements:
        _, reference = arms[ours.arm]
        theirs = by_key.get((ours.round, ours.workload, reference.name)) if reference else None
        if theirs is None or (ours.arm, ours.workload) in found:
            continue
        for turn, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)):
            if parted := first_difference(a, b):
                found[ours.arm, ours.workload] = ours, theirs, turn, parted
                break
    if not found:
        return []
    compute = session.settings.plan.compute
    with PlainLoop(
        session.model.path, context=compute.context, exact=compute.exact, gpu_layers=compute.gpu_layers
    ) as loop:
        return [
            Difference(
                ours.arm,
                theirs.arm,
                ours.workload,
                turn,
                *parted,
                _gap(session, loop, theirs, turn, parted[0]),
            )
            for ours, theirs, turn, parted in found.values()
        ]


def _gap(session: Session, loop: PlainLoop, theirs: Measurement, turn: int, position: int) -> float:
    """Of the reference's two likeliest tokens at a position of one of its answers."""
    steps = (step for step in session.steps() if step.workload.id == theirs.workload)
    step: Step = next(step for step in steps if step.round == theirs.round)
    messages: list[dict[str, str]] = []
    for number, request in enumerate(session.requests(step, messages)):
        tokens = theirs.turns[number].tokens
        if number == turn:
            history = [*session.prompts.tokens(request), *tokens[:position]]
            break
        text = b"".join(map(session.prompts.piece, tokens)).decode("utf-8", "replace")
        messages.append({"role": "assistant", "content": text})
    return loop.top_two_gap(history)
