"""How many drafts of a NextN block are right: greedy answers through the real stage, drafts verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources

import orjson

from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.tail import Tail, agreed_rows
from engine.errors import ModelFileError
from engine.model.file import ModelFile
from engine.model.slices import whole_model
from engine.model.tokenizer import Tokenizer
from engine.protocol.messages import ConfigureGeneration, SamplingSettings
from engine.training.chat import chat_pieces

_PREFILL_ROWS = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A user turn and the kind of text that answers it."""

    category: str
    prompt: str


@dataclass(slots=True)
class Acceptance:
    """Drafts by their place in a draft: how often one was verified after right ones, and how often right."""

    verified: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    def count(self, drafted: int, agreed: int) -> None:
        """A window whose first `agreed` of `drafted` tokens were right."""
        while len(self.verified) < drafted:
            self.verified.append(0)
            self.right.append(0)
        for place in range(min(agreed + 1, drafted)):
            self.verified[place] += 1
            self.right[place] += place < agreed

    def add(self, other: Acceptance) -> None:
        for place, (verified, right) in enumerate(zip(other.verified, other.right, strict=True)):
            if place == len(self.verified):
                self.verified.append(0)
                self.right.append(0)
            self.verified[place] += verified
            self.right[place] += right

    @property
    def rates(self) -> list[float]:
        """Share of right drafts by place, given that those before were right."""
        return [right / max(verified, 1) for verified, right in zip(self.verified, self.right, strict=True)]


def held_out_questions() -> list[Question]:
    """The questions that come with this package. None of them is in the texts that training begins with."""
    lines = resources.files("engine.training").joinpath("held_out.jsonl").read_bytes().splitlines()
    return [Question(**orjson.loads(line)) for line in lines]


def measure(
    model: ModelFile,
    questions: Iterable[Question],
    *,
    draft: int = 1,
    tokens: int = 160,
    options: ComputeOptions | None = None,
    progress: Callable[[Question, Acceptance], None] | None = None,
) -> dict[str, Acceptance]:
    """Acceptance by category, from greedy answers of up to `tokens` tokens with `draft` drafts a window.

    Raises ModelFileError if the model has no NextN block or no usable chat template.
    """
    if not model.n_nextn:
        raise ModelFileError(f"{model.name} has no NextN block")
    found: dict[str, Acceptance] = {}
    with Tokenizer(model.path) as tokenizer:
        pieces = chat_pieces(model, tokenizer)
        stage = Stage(whole_model(model), options or ComputeOptions(context=2048, threads=1))
        try:
            runner = _Runner(stage, tokenizer.is_end)
            for question in questions:
                prompt = pieces.prompt(tokenizer.encode(question.prompt, special=False, add_bos=False))
                one = runner.answer(prompt, tokens, draft)
                found.setdefault(question.category, Acceptance()).add(one)
                if progress is not None:
                    progress(question, one)
        finally:
            stage.close()
    return found


def total(by_category: Iterable[Acceptance]) -> Acceptance:
    """All categories together."""
    summed = Acceptance()
    for one in by_category:
        summed.add(one)
    return summed


class _Runner:
    """Answers by windows of the newest token and its drafts."""

    def __init__(self, stage: Stage, is_end: Callable[[int], bool]) -> None:
        self._tail = Tail(stage)
        self._is_end = is_end

    def answer(self, prompt: Sequence[int], tokens: int, draft: int) -> Acceptance:
        tail, counts = self._tail, Acceptance()
        tail.configure(0, ConfigureGeneration(0, SamplingSettings(), len(prompt), "mtp"))
        for start in range(0, len(prompt) - 1, _PREFILL_ROWS):
            chunk = prompt[start : min(start + _PREFILL_ROWS, len(prompt) - 1)]
            tail.prefill(0, start, chunk, prompt[start + len(chunk)], None)
        position, window, said = len(prompt) - 1, [prompt[-1]], 0
        while said < tokens:
            predictions, drafted = tail.verify(0, position, window, None, draft)
            agreed = agreed_rows(window, predictions)
            counts.count(len(window) - 1, agreed - 1)
            if any(self._is_end(token) for token in predictions[:agreed]):
                break
            said += agreed
            position += agreed
            window = [predictions[agreed - 1], *(drafted.tokens if drafted is not None else ())]
        tail.release(0)
        return counts
