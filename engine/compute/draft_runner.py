"""Runs a draft model ahead of the target, on a thread of its own, greedily.

The decode loop asks without waiting: what has been drafted so far is the answer, and what is missing is
drafted next. The thread goes on drafting while windows are under way, so its work hides behind the link.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.errors import ModelFileError, SkippyError
from engine.model.file import ModelFile
from engine.model.slices import whole_model

log = logging.getLogger("skippy.draft")

BATCH_ROWS = 128


def check_same_vocabulary(target: ModelFile, draft: ModelFile) -> None:
    """Raise ModelFileError unless both models have the same tokens: drafts are token ids of the target."""
    tokens = "tokenizer.ggml.tokens"
    if target.metadata.get(tokens) != draft.metadata.get(tokens):
        raise ModelFileError(
            f"the draft model {draft.path.name} ({draft.n_vocab} tokens) has another vocabulary than "
            f"{target.name} ({target.n_vocab} tokens)",
            hint="a draft model must be of the same family as the model",
        )


class DraftRunner:
    """A draft model on a thread; implements `engine.speculation.types.DraftRunner`.

    `on_ready` is called on that thread whenever a token was drafted. `ahead` bounds how far it runs.
    """

    def __init__(self, path: Path, target: ModelFile, *, context: int, ahead: int, threads: int = 0) -> None:
        model = ModelFile.open(path)
        check_same_vocabulary(target, model)
        options = ComputeOptions(
            context=context, threads=threads or max(1, (os.cpu_count() or 2) // 2), batch_rows=BATCH_ROWS
        )
        self._stage = Stage(whole_model(model), options)
        self._context = context
        self._ahead = ahead
        self.on_ready: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._wanted: list[int] = []  # the tokens to draft after
        self._stream: list[int] = []  # wanted tokens, then drafted ones
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="draft-model", daemon=True)
        self._thread.start()

    def drafted(self, history: Sequence[int], pending: Sequence[int], budget: int) -> Sequence[int]:
        """What was drafted so far to follow history + pending, at most `budget` tokens; never waits."""
        wanted = [*history, *pending]
        with self._changed:
            known = self._stream[: len(wanted)] == wanted
            if self._wanted != wanted:
                self._wanted = wanted
                if not known:
                    self._stream = list(wanted)
                self._changed.notify()
            return self._stream[len(wanted) : len(wanted) + budget]

    def close(self) -> None:
        """End the thread and free the model."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._stage.close()

    def _run(self) -> None:
        cached: list[int] = []  # the tokens in the draft model's cache
        while (stream := self._next_work()) is not None:
            try:
                token, cached = self._next_token(stream, cached)
            except SkippyError as error:
                log.warning("the draft model failed and is not used any more: %s", error)
                return
            with self._changed:
                if self._stream == stream:  # else the target went another way meanwhile
                    self._stream.append(token)
                ready = self.on_ready
            if ready is not None:
                ready()

    def _next_work(self) -> list[int] | None:
        """Wait until there is something to draft; a copy of the stream so far, None at the end."""
        with self._changed:
            while not self._closed:
                drafted = len(self._stream) - len(self._wanted)
                if self._wanted and drafted < self._ahead and len(self._stream) < self._context:
                    return list(self._stream)
                self._changed.wait()
            return None

    def _next_token(self, stream: list[int], cached: list[int]) -> tuple[int, list[int]]:
        """The draft model's own token after a stream, and what its cache then holds."""
        start = 0
        limit = min(len(cached), len(stream) - 1)  # at least the last token is computed
        while start < limit and cached[start] == stream[start]:
            start += 1
        for begin in range(start, len(stream), BATCH_ROWS):
            rows = stream[begin : begin + BATCH_ROWS]
            self._stage.forward(0, begin, tokens=rows, logits="last")
        last = (len(stream) - start - 1) % BATCH_ROWS
        return int(self._stage.logits(last).argmax()), stream
