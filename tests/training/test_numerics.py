"""The arithmetic of training beside numpy's, and its gradients beside differences. Needs PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from engine.training.chat import chat_pieces
from tests.training.reference import ReferenceModel
from tests.training.test_nextn import TOKENS, random_head
from tests.training.tiny_chat import write_tiny_chat

torch = pytest.importorskip("torch", reason="PyTorch, the extra `train`, is not installed")

from engine.training.decoder import Cache, Trunk  # noqa: E402
from engine.training.generate import MARK, Writer, script_of  # noqa: E402
from engine.training.head import Head, unrolled_mask  # noqa: E402
from engine.training.loss import Distillation  # noqa: E402
from engine.training.settings import RunFolder, TrainingSettings  # noqa: E402
from engine.training.trainer import Clock, Trainer  # noqa: E402


@pytest.fixture
def source(tmp_path: Path) -> ModelFile:
    write_tiny_chat(tmp_path / "chat.gguf")
    return ModelFile.open(tmp_path / "chat.gguf")


@pytest.fixture
def trunk(source: ModelFile) -> Trunk:
    return Trunk(source, device="cpu", dtype=torch.float32, positions=256)


def test_trunk_and_block_compute_what_the_reference_does(source: ModelFile, trunk: Trunk) -> None:
    arrays = random_head(source)
    reference = ReferenceModel(source, arrays)
    tokens = torch.tensor([TOKENS])
    hidden = trunk.hidden(tokens)
    np.testing.assert_allclose(hidden[0].numpy(), reference.trunk(TOKENS), atol=1e-3)
    rows = Head(trunk, arrays).unroll(tokens, hidden, 1)[0].detach()
    said = (rows[0, -1] @ trunk.output.t()).numpy()
    np.testing.assert_allclose(said, reference.block_logits(TOKENS, reference.trunk(TOKENS)), atol=1e-2)


def test_a_head_survives_its_arrays(source: ModelFile, trunk: Trunk) -> None:
    arrays = random_head(source)
    again = Head(trunk, arrays).arrays()
    assert set(again) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_rows_see_first_steps_then_one_row_of_each_step_between() -> None:
    seen = unrolled_mask(5, 3, "cpu").numpy()[4].reshape(3, 5)
    np.testing.assert_array_equal(np.flatnonzero(seen[0]), [0, 1, 2])  # steps of drafting begin after these
    np.testing.assert_array_equal(np.flatnonzero(seen[1]), [3])
    np.testing.assert_array_equal(np.flatnonzero(seen[2]), [4])


def test_a_second_step_is_the_block_fed_with_its_own_state(source: ModelFile, trunk: Trunk) -> None:
    """Row p of step 2, computed alone: the cache up to row p-1 of step 1, then the row with the own state."""
    arrays, row = random_head(source), 5
    head = Head(trunk, arrays)
    tokens = torch.tensor([TOKENS])
    hidden = trunk.hidden(tokens)
    second = head.unroll(tokens, hidden, 2)[1][0, row].detach()
    # The state that step 1 leaves in row p-1 stands in for the trunk's in row p of a plain first step.
    states: list[torch.Tensor] = []
    finish = trunk.finish

    def kept(*arguments: object) -> torch.Tensor:
        states.append(finish(*arguments))
        return states[-1]

    trunk.finish = kept
    head.unroll(tokens, hidden, 1)
    replaced = hidden.clone()
    replaced[0, row] = states[0][0, row - 1].detach()
    alone = head.unroll(tokens, replaced, 1)[0][0, row].detach()
    torch.testing.assert_close(second, alone, atol=1e-4, rtol=1e-4)


def test_rows_one_by_one_give_the_logits_of_all_at_once(trunk: Trunk) -> None:
    tokens = torch.tensor([TOKENS, TOKENS[::-1]])
    whole = trunk.normed(trunk.hidden(tokens)) @ trunk.output.t()
    cache = Cache(trunk, 2, len(TOKENS))
    for position in range(len(TOKENS)):
        logits = cache.advance(tokens[:, position], position)
        torch.testing.assert_close(logits, whole[:, position], atol=1e-3, rtol=1e-3)


def test_the_gradient_is_that_of_the_loss(trunk: Trunk) -> None:
    generator = torch.Generator().manual_seed(0)
    target, rows = (torch.randn(7, trunk.shape.width, generator=generator) for _ in range(2))
    distillation = Distillation(trunk.output, hard=0.3, device="cpu")
    rows.requires_grad_()
    wanted = target @ trunk.output.t()
    said = torch.log_softmax(rows @ trunk.output.t(), -1)
    soft = -(torch.softmax(wanted, -1) * said).sum(-1)
    hard = -said.gather(1, wanted.argmax(-1, keepdim=True))[:, 0]
    loss = 0.6 * (0.7 * soft + 0.3 * hard).mean()
    loss.backward()
    found = distillation.distance(target, [rows.detach()], [0.6])
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    torch.testing.assert_close(found.gradients[0], rows.grad, atol=1e-5, rtol=1e-3)
    agreed = (wanted.argmax(-1) == said.argmax(-1)).float().mean()
    assert found.right == (pytest.approx(float(agreed)),)


def test_written_conversations_follow_the_template_and_the_seed(source: ModelFile, trunk: Trunk) -> None:
    with Tokenizer(source.path) as tokenizer:
        pieces = chat_pieces(source, tokenizer)
        writer = Writer(trunk, script_of(pieces, tokenizer, "cpu"))
        texts = writer.sequences(12, 200, seed=4)
        again = writer.sequences(12, 200, seed=4)
    np.testing.assert_array_equal(texts, again)
    tokens, said = texts % MARK, texts >= MARK
    chats = tokens[:, 0] == pieces.opening[0]
    assert chats.sum() >= 10
    answers = 0
    for row in range(len(texts)):
        text = list(tokens[row])
        for at in np.flatnonzero(np.diff(said[row].astype(int)) == 1):
            before = text[: at + 1]
            if len(before) > len(pieces.to_answer):
                assert tuple(before[-len(pieces.to_answer) :]) == pieces.to_answer
                answers += 1
    assert answers >= 10


def test_training_brings_the_block_nearer_to_the_trunk(trunk: Trunk, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    texts = (rng.integers(3, trunk.shape.vocabulary, (20, 24)) + MARK).astype(np.int32)
    settings = TrainingSettings(sequences=20, rows=24, steps=60, batch=9, learning_rate=0.01)
    trainer = Trainer(trunk, texts, settings)
    tokens = torch.from_numpy(texts % MARK).long()

    def distance() -> float:
        hidden = trunk.hidden(tokens)
        rows = [step.detach().flatten(0, 1) for step in trainer.head.unroll(tokens, hidden, 2)]
        target = trunk.normed(hidden[:, 1:]).flatten(0, 1)
        return Distillation(trunk.output, hard=0.5, device="cpu").distance(target, rows, [1.0, 0.6]).loss

    before = distance()
    lines: list[str] = []
    trainer.run(RunFolder(tmp_path), Clock(0.0), lines.append)
    assert trainer.step == 60
    assert distance() < 0.8 * before
    assert lines[-1].startswith("held out after 60 steps: right ")
