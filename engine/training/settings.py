"""What a training run is asked for, and where it keeps what it has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError

GENERATE_SHARE = 0.3  # of the minutes, at most


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Defaults are those of the shipped head. `minutes` (0: no limit) ends a run before all of its steps."""

    sequences: int = 65536
    rows: int = 512  # tokens of a sequence
    steps: int = 15000
    batch: int = 40  # sequences of a step
    minutes: float = 0.0
    learning_rate: float = 1e-3
    unroll: int = 2
    hard: float = 0.5  # weight of the trunk's most likely token against its whole distribution
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("sequences", 2), ("rows", 8), ("steps", 1), ("batch", 1), ("unroll", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        if self.learning_rate <= 0 or self.minutes < 0 or not 0 <= self.hard <= 1:
            raise UsageError("learning rate and minutes must not be negative, and hard is between 0 and 1")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class RunFolder:
    """The files of a run: texts, checkpoint, and what comes out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.pt"
        self.head = path / "head.gguf"

    def prepare(self, *, resume: bool) -> None:
        """Make the folder. Raises UsageError if it holds a run that is not to be resumed."""
        if not resume and (self.checkpoint.exists() or self.texts()):
            raise UsageError(
                f"{self.path} holds another run", hint="give --resume to go on with it, or another --out"
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def texts(self) -> list[Path]:
        """Files of generated sequences, oldest first."""
        return sorted(self.path.glob("texts-*.npy"))

    def next_texts(self) -> Path:
        return self.path / f"texts-{len(self.texts()):04d}.npy"
