"""The yardstick with native MTP says what the plain one says."""

from __future__ import annotations

import pytest

from engine.bench.whole_mtp import MtpLoop
from engine.client.requests import GenerateRequest
from engine.compute.whole_loop import PlainLoop
from engine.coordinator.prompt import PromptBuilder
from engine.model.demo import demo_model
from engine.model.file import ModelFile


@pytest.mark.model
def test_drafts_change_no_token_and_some_are_right() -> None:
    prompts = PromptBuilder(ModelFile.open(demo_model()))
    messages = ({"role": "user", "content": "Write a Python function that adds two numbers."},)
    prompt = prompts.tokens(GenerateRequest(request="r", messages=messages))
    with PlainLoop(demo_model(), context=256) as plain, MtpLoop(demo_model(), context=256) as drafting:
        expected = plain.generate(prompt, 24, prompts.is_end).tokens
        run = drafting.generate(prompt, 24, prompts.is_end)
        again = drafting.generate(prompt, 24, prompts.is_end)
    prompts.close()
    assert run.tokens == again.tokens == expected
    assert 0 < run.accepted <= run.proposed
    assert len(run.tokens) == 1 + run.proposed + run.accepted
