"""A run: every arm answers every workload in turn, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from engine.bench.arms import PLAIN, Arm, BenchSettings, Kind, arms_of
from engine.bench.machine import machine
from engine.bench.measurement import Measurement
from engine.bench.pace import Job, Pace
from engine.bench.record import Record
from engine.bench.runners import Runner, open_runners
from engine.bench.workloads import Workload
from engine.client.requests import GenerateRequest
from engine.coordinator.prompt import PromptBuilder
from engine.errors import UsageError
from engine.model.file import ModelFile

PREFILL = "prefill"
"""Category of the long prompt whose first token is timed, and nothing else."""

WARM_UP_TOKENS = 24
"""Length of the answer with which each arm warms up: slices are paged in, and costs have been seen."""

_PREFILL_TEXT = "The keeper climbed the spiral stairs every evening and trimmed the wick of the great lamp. "


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement to be made."""

    round: int
    workload: Workload
    arm: Arm

    @property
    def job(self) -> Job:
        return self.arm.name, self.workload.category


@dataclass(frozen=True, slots=True)
class Told:
    """What is known when a measurement has been made."""

    step: Step
    measurement: Measurement
    done: int
    total: int
    seconds_left: float


class Session:
    """One run of the bench over one model."""

    def __init__(self, settings: BenchSettings, model: ModelFile, *, native_mtp: bool) -> None:
        self.settings = settings
        self.model = model
        self.arms = arms_of(settings, native_mtp=native_mtp)
        self.prompts = PromptBuilder(model)
        self._prefill_text = self._text_of(settings.prefill_tokens)
        self._check_lengths()

    def head(self) -> dict[str, Any]:
        """The first line of the record: what is measured, and where."""
        return {**self.settings.to_dict(), "fingerprint": self.model.fingerprint, **machine()}

    def steps(self) -> Iterator[Step]:
        """All measurements in their order: A B C .. A B C .., one workload after the other, by rounds."""
        for number in range(self.settings.repeat):
            for workload in self.settings.suite.workloads:
                yield from (Step(number, workload, arm) for arm in self.arms)
            if self.settings.prefill_tokens:
                # A beginning of its own, so that nothing of it is in any cache.
                workload = Workload(PREFILL, PREFILL, (f"{number}: {self._prefill_text}",))
                yield from (Step(number, workload, arm) for arm in self.arms if _is_prefilled(arm))

    async def run(self, record: Record, tell: Callable[[Told], None], say: Callable[[str], None]) -> None:
        """Make the measurements that the record lacks. `say` is told what is being waited for."""
        steps = list(self.steps())
        pending = [step for step in steps if not record.holds(step.round, step.workload.id, step.arm.name)]
        if not pending:
            return
        async with AsyncExitStack() as stack:
            say("loading")
            needed = [arm for arm in self.arms if any(step.arm == arm for step in pending)]
            runners = await open_runners(self.settings, needed, self.model, self.prompts, stack)
            for number, arm in enumerate(needed, start=1):
                say(f"warming up {number}/{len(needed)}: {arm.name}")
                await runners[arm].answer(arm, self._warm_up(arm))
            pace = Pace()
            for number, step in enumerate(pending, start=1):
                begun = time.monotonic()
                measurement = await self._measure(runners[step.arm], step)
                record.add(measurement)
                pace.add(step.job, time.monotonic() - begun)
                done = len(steps) - len(pending) + number
                left = pace.seconds(other.job for other in pending[number:])
                tell(Told(step, measurement, done, len(steps), left))

    def _warm_up(self, arm: Arm) -> GenerateRequest:
        step = Step(-1, self.settings.suite.workloads[0], arm)
        return replace(next(self.requests(step, [])), max_tokens=WARM_UP_TOKENS)

    async def _measure(self, runner: Runner, step: Step) -> Measurement:
        """Have the conversation of a workload, with the arm's own answers as its history."""
        messages: list[dict[str, str]] = []
        turns = []
        for request in self.requests(step, messages):
            turn, text = await runner.answer(step.arm, request)
            messages.append({"role": "assistant", "content": text})
            turns.append(turn)
        workload = step.workload
        return Measurement(step.round, workload.id, workload.category, step.arm.name, tuple(turns))

    def requests(self, step: Step, messages: list[dict[str, str]]) -> Iterator[GenerateRequest]:
        """The requests of a workload, turn by turn. Whoever takes one adds its answer to `messages`."""
        workload = step.workload
        name = f"{step.arm.name}/{workload.id}/{step.round}"
        for number, text in enumerate(workload.turns):
            messages.append({"role": "user", "content": text})
            prefill = workload.category == PREFILL
            yield GenerateRequest(
                request=f"{name}/{number}",
                messages=() if prefill else tuple(messages),
                prompt=text if prefill else None,
                session=name if len(workload.turns) > 1 else "",
                max_tokens=1 if prefill else self.settings.max_tokens,
                sampling=self.settings.plan.generation.sampling,
                strategy=step.arm.strategy,
            )

    def close(self) -> None:
        self.prompts.close()

    def _text_of(self, length: int) -> str:
        """A text of about so many tokens."""
        per_sentence = len(self.prompts.tokenizer.encode(_PREFILL_TEXT, special=False))
        tokens = self.prompts.tokenizer.encode(_PREFILL_TEXT * (length // per_sentence + 1), special=False)
        return b"".join(map(self.prompts.piece, tokens[: max(0, length - 4)])).decode("utf-8", "replace")

    def _check_lengths(self) -> None:
        """Raise UsageError for a workload that the context cannot hold, before anything is measured."""
        context, answer = self.settings.plan.compute.context, self.settings.max_tokens
        for workload in self.settings.suite.workloads:
            messages = tuple({"role": "user", "content": text} for text in workload.turns)
            prompt = len(self.prompts.tokens(GenerateRequest(request=workload.id, messages=messages)))
            needed = prompt + answer * len(workload.turns) + 1
            if needed > context:
                raise UsageError(
                    f"the workload {workload.id} needs {needed} tokens of context, not {context}",
                    hint=f"give --ctx {needed}",
                )


def _is_prefilled(arm: Arm) -> bool:
    """Prefill is the same for every strategy, and a delay only adds to it."""
    return arm.strategy == PLAIN and arm.kind is not Kind.WHOLE_MTP and not arm.rtt_ms
