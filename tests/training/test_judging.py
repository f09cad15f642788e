"""Counting drafts, chat pieces, and the questions that heads are judged on. No PyTorch is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from engine.training.acceptance import Acceptance, held_out_questions, total
from engine.training.chat import chat_pieces
from engine.training.openings import OPENINGS
from tests.training.tiny_chat import write_tiny_chat


def test_a_draft_counts_at_each_place_that_was_reached() -> None:
    counts = Acceptance()
    counts.count(3, 3)
    counts.count(3, 1)
    counts.count(2, 0)
    counts.count(0, 0)
    assert counts.verified == [3, 2, 1]
    assert counts.right == [2, 1, 1]
    assert counts.rates == [2 / 3, 1 / 2, 1.0]


def test_counts_of_categories_add_up() -> None:
    short, long = Acceptance([4], [1]), Acceptance([6, 2], [5, 1])
    assert total([short, long]) == Acceptance([10, 2], [6, 1])
    assert short == Acceptance([4], [1])


def test_held_out_questions_are_of_all_kinds_and_no_openings() -> None:
    questions = held_out_questions()
    kinds = {question.category for question in questions}
    assert kinds == {
        "chat", "coding", "reasoning", "summarisation", "writing", "copy", "rename", "list",
    }  # fmt: skip
    assert not {question.prompt for question in questions} & set(OPENINGS)


def test_pieces_of_a_chat_make_the_templates_own_prompt(tmp_path: Path) -> None:
    write_tiny_chat(tmp_path / "chat.gguf")
    model = ModelFile.open(tmp_path / "chat.gguf")
    with Tokenizer(model.path) as tokenizer:
        pieces = chat_pieces(model, tokenizer)
        prompt = pieces.prompt(tokenizer.encode("hi", special=False))
        text = b"".join(tokenizer.piece(token, special=True) for token in prompt).decode()
        next_turn = b"".join(tokenizer.piece(token, special=True) for token in pieces.to_user).decode()
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert next_turn == "<|im_end|>\n<|im_start|>user\n"
    assert (pieces.to_answer[0], pieces.to_user[0]) == (pieces.end, pieces.end)


def test_a_template_whose_questions_end_otherwise_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    write_tiny_chat(tmp_path / "chat.gguf", template=template)
    model = ModelFile.open(tmp_path / "chat.gguf")
    with Tokenizer(model.path) as tokenizer, pytest.raises(ModelFileError, match="end token"):
        chat_pieces(model, tokenizer)
