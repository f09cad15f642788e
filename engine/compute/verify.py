"""Does the split compute what the whole model computes? A fixed text through both, logits side by side.

One stage is loaded at a time: the whole text runs through it, what it says is kept, and the next one takes it
from there. So a model that barely fits the machine can be verified on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.compute.embedding import EmbeddingTable
from engine.compute.mtp import DraftHead
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.errors import UsageError
from engine.model.file import ModelFile
from engine.model.packages.source import cut_of
from engine.model.slices import SliceFile
from engine.model.tokenizer import Tokenizer
from engine.protocol.activations import round_trip
from engine.protocol.messages import WireType

TEXT = """The lighthouse keeper climbed the spiral stairs every evening at six. He trimmed the wick, polished
the great lens, and wrote the weather in a small blue book: wind from the north-west, 7 knots, clear.

def distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5

Le phare s'allume à dix-huit heures; the ships answer with their horns. 灯台の光は海を照らす。
"""
PREFILL_ROWS = 64
DECODED = 24
WINDOW_ROWS = 4

Activations = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Largest differences over all positions, of the target's logits and of the NextN block's."""

    splits: tuple[int, ...]
    wire: WireType
    max_logit_diff: float
    argmax_agreement: float  # 1.0: the same token everywhere
    mtp_max_logit_diff: float | None  # None: no NextN block
    positions: int

    @property
    def exact(self) -> bool:
        return self.max_logit_diff == 0 and not self.mtp_max_logit_diff


@dataclass(slots=True)
class _Spoken:
    """What a stage says: hidden states of each call, or logits by position."""

    hidden: list[Activations] = field(default_factory=list)
    logits: list[Activations] = field(default_factory=list)
    drafts: list[Activations] = field(default_factory=list)


class Verification:
    """Compares splits of one model with the whole, which is computed once.

    `tokens` default to a fixed text.
    """

    def __init__(
        self,
        model: ModelFile,
        *,
        options: ComputeOptions | None = None,
        tokens: Sequence[int] | None = None,
    ) -> None:
        self._model = model
        self._tokens = tokens or _text_tokens(model)
        self._calls = _calls(len(self._tokens) - 1)  # the NextN block looks one token ahead
        self._options = options or ComputeOptions(context=len(self._tokens), batch_rows=PREFILL_ROWS)
        self._whole: _Spoken | None = None

    def compare(
        self,
        splits: Sequence[int],
        wire: WireType = WireType.F32,
        *,
        cache_dir: Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """The split before each layer of `splits` against the whole model, prefill and decode.

        Rows between stages are rounded as `wire` does. `progress` is called with (stages done, of how many).
        Raises UsageError for cuts that are none, and what slicing and computing raise.
        """
        model = self._model
        edges = (0, *splits, model.n_layers)
        if len(edges) < 3 or list(edges) != sorted(set(edges)):
            raise UsageError(f"splits {list(splits)} must rise between 1 and {model.n_layers - 1}")
        parts = [cut_of(model, first, end, cache_dir=cache_dir) for first, end in pairwise(edges)]
        report = progress or (lambda done, total: None)
        report(0, len(parts) + 1)
        if self._whole is None:
            self._whole = self._run(cut_of(model, 0, model.n_layers, cache_dir=cache_dir), [])
        spoken = self._whole
        heard: list[Activations] = []
        for done, part in enumerate(parts, start=1):
            report(done, len(parts) + 1)
            spoken = self._run(part, heard)
            heard = [round_trip(rows, wire) for rows in spoken.hidden]
        report(len(parts) + 1, len(parts) + 1)
        return _compare(self._whole, spoken, tuple(splits), wire)

    def _run(self, part: SliceFile, heard: Sequence[Activations]) -> _Spoken:
        return _run(self._model, part, self._options, self._tokens, self._calls, heard)


def verify_split(
    model: ModelFile,
    splits: Sequence[int],
    wire: WireType = WireType.F32,
    *,
    options: ComputeOptions | None = None,
    tokens: Sequence[int] | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """One split of a model against the whole; see `Verification`."""
    verification = Verification(model, options=options, tokens=tokens)
    return verification.compare(splits, wire, cache_dir=cache_dir, progress=progress)


def _run(
    model: ModelFile,
    part: SliceFile,
    options: ComputeOptions,
    tokens: Sequence[int],
    calls: Sequence[tuple[int, int]],
    heard: Sequence[Activations],
) -> _Spoken:
    """All calls through one stage; `heard` are the hidden states that it gets, call by call."""
    spoken = _Spoken()
    with _opened(model, part, options) as (stage, head):
        for number, (start, rows) in enumerate(calls):
            end = start + rows
            if part.is_first:
                hidden = stage.forward(0, start, tokens=tokens[start:end])
            else:
                hidden = stage.forward(0, start, hidden=heard[number])
            if hidden is not None:
                spoken.hidden.append(hidden)
                continue
            spoken.logits.append(stage.all_logits().copy())
            if head is not None:
                head.record(0, start, stage.hidden_rows())
                for position in range(start, end):
                    head.feed(0, tokens[: position + 2])
                    spoken.drafts.append(head.logits().copy())
    return spoken


@contextmanager
def _opened(
    model: ModelFile, part: SliceFile, options: ComputeOptions
) -> Iterator[tuple[Stage, DraftHead | None]]:
    with ExitStack() as opened:
        looks_up = part.is_first and not part.whole
        embeddings = EmbeddingTable(model, part.rules.input_scale) if looks_up else None
        stage = Stage(part, options, embeddings=embeddings)
        opened.callback(stage.close)
        head = None
        if part.native_mtp:
            head = DraftHead(stage.model, stage.context, options)
            opened.callback(head.close)
            stage.keep_hidden_rows(True)
        yield stage, head


def _compare(whole: _Spoken, split: _Spoken, splits: tuple[int, ...], wire: WireType) -> VerifyReport:
    ours, theirs = np.concatenate(split.logits), np.concatenate(whole.logits)
    drafts = None
    if whole.drafts and split.drafts:
        drafts = float(np.abs(np.stack(split.drafts) - np.stack(whole.drafts)).max())
    return VerifyReport(
        splits=splits,
        wire=wire,
        max_logit_diff=float(np.abs(ours - theirs).max()),
        argmax_agreement=float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        mtp_max_logit_diff=drafts,
        positions=len(ours),
    )


def _calls(n: int) -> list[tuple[int, int]]:
    """(start, rows) of each call: prefill in chunks, then by turns single rows and windows."""
    decoded = min(DECODED, n // 2)
    calls = [(start, min(PREFILL_ROWS, n - decoded - start)) for start in range(0, n - decoded, PREFILL_ROWS)]
    position = n - decoded
    while position < n:
        rows = min(n - position, 1 if len(calls) % 2 else WINDOW_ROWS)
        calls.append((position, rows))
        position += rows
    return calls


def _text_tokens(model: ModelFile) -> list[int]:
    """The fixed text in the model's tokens; ids in a fixed order if it has no tokenizer."""
    if model.metadata.get("tokenizer.ggml.model", "none") == "none":
        return [int(token) for token in np.random.default_rng(0).integers(0, model.n_vocab, 160)]
    with Tokenizer(model.path) as tokenizer:
        return tokenizer.encode(TEXT, special=False)
