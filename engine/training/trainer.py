"""The training loop: texts first, then steps over them, with checkpoints to go on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.errors import ModelFileError
from engine.model.nextn import head_content
from engine.training.decoder import Tensor, Trunk
from engine.training.generate import MARK, Writer, batch_size
from engine.training.head import Arrays, Head
from engine.training.loss import Distillation
from engine.training.settings import GENERATE_SHARE, RunFolder, TrainingSettings

STEP_WEIGHTS = (1.0, 0.6, 0.4)
EVALUATED_STEPS = 3
_HELD_OUT = 64  # sequences, or a tenth of fewer
_WARM_UP = 200  # steps
_LOWEST = 0.02  # of the learning rate, at the end
_REPORT_STEPS, _EVALUATE_STEPS = 100, 1000
_CHECKPOINT_SECONDS = 60.0

Report = Callable[[str], None]


def step_weight(step: int) -> float:
    """Weight of an unrolled step, counted from 0."""
    return STEP_WEIGHTS[min(step, len(STEP_WEIGHTS) - 1)]


class Clock:
    """Minutes of all parts of a run together."""

    def __init__(self, minutes: float, spent: float = 0.0) -> None:
        self._limit = 60 * minutes
        self._begun = time.monotonic() - spent

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def share(self) -> float:
        """How much of the time is gone; 0 without a limit."""
        return self.seconds / self._limit if self._limit else 0.0


def write_texts(
    trunk: Trunk, writer: Writer, folder: RunFolder, settings: TrainingSettings, clock: Clock, report: Report
) -> NDArray[np.int32]:
    """All sequences of a run: those in its folder, and those that are missing, saved batch by batch."""
    found = [np.load(path) for path in folder.texts()]
    batch = min(settings.sequences, batch_size(trunk, settings.rows))
    while sum(map(len, found)) < settings.sequences and not (found and clock.share() > GENERATE_SHARE):
        begun = time.monotonic()
        made = writer.sequences(batch, settings.rows, settings.seed + len(found))
        np.save(folder.next_texts(), made)
        found.append(made)
        rate = made.size / (time.monotonic() - begun)
        report(f"wrote {sum(map(len, found))} of {settings.sequences} sequences, {rate:,.0f} tokens/s")
    return np.concatenate(found)


class Trainer:
    """A head on its way. Make it, `restore` if there is a checkpoint, `run`."""

    def __init__(
        self, trunk: Trunk, texts: NDArray[np.int32], settings: TrainingSettings, start: Arrays | None = None
    ) -> None:
        self.settings = settings
        self.head = Head(trunk, start)
        self.step = 0
        self._trunk = trunk
        held_out = min(_HELD_OUT, max(1, len(texts) // 10))
        self._held_out, self._texts = texts[:held_out], texts[held_out:]
        self._distillation = Distillation(trunk.output, hard=settings.hard, device=trunk.device)
        self._optimizer = torch.optim.AdamW(
            self.head.parameters.values(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint. Raises ModelFileError for one of a run with other settings."""
        saved = torch.load(path, map_location=self._trunk.device, weights_only=True)
        if saved["settings"] != self.settings.as_dict():
            raise ModelFileError(f"{path} was made with other settings", hint="give the same ones to resume")
        for name, value in saved["parameters"].items():
            self.head.parameters[name].data.copy_(value)
        self._optimizer.load_state_dict(saved["optimizer"])
        self.step = int(saved["step"])

    def save(self, folder: RunFolder, seconds: float) -> None:
        """Write checkpoint and head; a run that is killed meanwhile leaves the older ones whole."""
        saved = {
            "settings": self.settings.as_dict(),
            "parameters": {name: value.detach() for name, value in self.head.parameters.items()},
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "seconds": seconds,
        }
        _replace(folder.checkpoint, lambda path: torch.save(saved, path))
        _replace(folder.head, self._write_head)

    def run(self, folder: RunFolder, clock: Clock, report: Report) -> None:
        """Train until the steps or the minutes are over. Interrupted, it saves what it has and raises."""
        saved_at = clock.seconds
        try:
            for tokens in self._batches():
                progress = max(self.step / self.settings.steps, self._time_share(clock))
                if progress >= 1:
                    break
                loss, right = self._train(tokens, progress)
                self.step += 1
                if self.step % _REPORT_STEPS == 0:
                    report(
                        f"step {self.step}, {progress:.0%}: loss {loss:.3f}, right {_percentages(right)}, "
                        f"{clock.seconds:.0f} s"
                    )
                if self.step % _EVALUATE_STEPS == 0:
                    report(f"held out: right {_percentages(self.evaluate())}")
                if clock.seconds - saved_at > _CHECKPOINT_SECONDS:
                    self.save(folder, clock.seconds)
                    saved_at = clock.seconds
        finally:
            self.save(folder, clock.seconds)
        report(f"held out after {self.step} steps: right {_percentages(self.evaluate())}")

    def evaluate(self) -> list[float]:
        """Share of right tokens of each unrolled step on held-out sequences, given the true text."""
        sums = [0.0] * EVALUATED_STEPS
        size = self.settings.batch
        parts = [self._held_out[at : at + size] for at in range(0, len(self._held_out), size)]
        with torch.no_grad():
            for part in parts:
                target, rows = self._forward(self._to_device(part), EVALUATED_STEPS)
                right = self._distillation.distance(target, rows, [1.0] * EVALUATED_STEPS).right
                sums = [known + share * len(part) for known, share in zip(sums, right, strict=True)]
        return [known / len(self._held_out) for known in sums]

    def _train(self, tokens: Tensor, progress: float) -> tuple[float, Sequence[float]]:
        warm = min(1.0, (self.step + 1) / _WARM_UP)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * warm * (_LOWEST + (1 - _LOWEST) * cosine)
        unroll = self.settings.unroll
        target, rows = self._forward(tokens, unroll)
        if not len(target):
            return 0.0, [0.0] * unroll
        detached = [step.detach() for step in rows]
        weights = [step_weight(step) for step in range(unroll)]
        distance = self._distillation.distance(target, detached, weights)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(rows, list(distance.gradients))
        torch.nn.utils.clip_grad_norm_(self.head.parameters.values(), 1.0)
        self._optimizer.step()
        return distance.loss, distance.right

    def _forward(self, marked: Tensor, steps: int) -> tuple[Tensor, list[Tensor]]:
        """Rows whose token the model said: the trunk's normed states, and those of each step."""
        tokens, said = marked % MARK, marked >= MARK
        with torch.no_grad():
            hidden = self._trunk.hidden(tokens)
            wanted = said[:, 1:].reshape(-1).nonzero()[:, 0]
            target = self._trunk.normed(hidden[:, 1:]).flatten(0, 1)[wanted]
        rows = [step.flatten(0, 1)[wanted] for step in self.head.unroll(tokens, hidden, steps)]
        return target, rows

    def _batches(self) -> Iterator[Tensor]:
        """Batches without end, each sequence once an epoch; a resumed run does not repeat the order."""
        random = np.random.default_rng((self.settings.seed, self.step))
        size = min(self.settings.batch, len(self._texts))
        while True:
            order = random.permutation(len(self._texts))
            for start in range(0, len(order) - size + 1, size):
                yield self._to_device(self._texts[order[start : start + size]])

    def _to_device(self, texts: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(texts).to(self._trunk.device).long()

    def _time_share(self, clock: Clock) -> float:
        """Of the time left after generating; the schedule follows it if it is ahead of the steps."""
        if not self.settings.minutes:
            return 0.0
        return max(0.0, (clock.share() - GENERATE_SHARE) / (1 - GENERATE_SHARE))

    def _write_head(self, path: Path) -> None:
        with path.open("wb") as file:
            head_content(self.head.arrays(), "NextN block").write(file)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    temporary.replace(path)


def _percentages(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.1%}" for share in shares)
