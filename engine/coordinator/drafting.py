"""What drafting shares between the requests of an engine: measured costs, n-gram files, a draft model."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from engine.compute.draft_runner import DraftRunner
from engine.config.plan import SpeculationPlan
from engine.errors import ConfigError
from engine.model.demo import resolve_model
from engine.model.file import ModelFile
from engine.speculation.costs import CostModel
from engine.speculation.ngram_counts import NgramCounts

log = logging.getLogger("skippy.draft")


class Drafting:
    """Opened with the engine, closed with it."""

    def __init__(self, plan: SpeculationPlan, target: ModelFile, context: int) -> None:
        """Read the files and load the draft model, if any is named. Raises SkippyError naming it."""
        self.costs = CostModel()  # a property of the machines, so one for all requests
        self.static = _read_counts(plan.ngram_static_file) if plan.ngram_static_file else None
        self._dynamic_path = Path(plan.ngram_dynamic_file) if plan.ngram_dynamic_file else None
        self.dynamic: NgramCounts | None = None
        if self._dynamic_path is not None:
            exists = self._dynamic_path.exists()
            self.dynamic = _read_counts(plan.ngram_dynamic_file) if exists else NgramCounts()
        self.runner: DraftRunner | None = None
        if plan.draft_model:
            self.runner = DraftRunner(
                resolve_model(plan.draft_model), target, context=context, ahead=plan.window_max
            )

    def learn(self, history: list[int], start: int) -> None:
        """An answer has ended: its tokens from `start` on join the dynamic tier, if one is kept."""
        if self.dynamic is not None:
            self.dynamic.count(history, start)

    def close(self) -> None:
        """End the draft model and keep the dynamic tier."""
        if self.runner is not None:
            self.runner.close()
        if self.dynamic is not None and self._dynamic_path is not None:
            _write_atomically(self._dynamic_path, self.dynamic.to_bytes())


def _read_counts(path: str) -> NgramCounts:
    try:
        return NgramCounts.from_bytes(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the n-gram file {path} cannot be read: {error.strerror}") from None


def _write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one. Failing loses only what this run has counted."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        log.warning("the n-gram file %s was not saved: %s", path, error)
