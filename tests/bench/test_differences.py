"""Whose tokens an arm must have, and where they part."""

from __future__ import annotations

import pytest

from engine.bench.arms import Arm, Kind
from engine.bench.differences import first_difference, reference_of
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.compute.whole_loop import PlainLoop
from engine.coordinator.prompt import PromptBuilder
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.model.slices import whole_model
from tests.bench.samples import ONE_STAGE, WHOLE, split


def test_the_first_difference_is_a_position_and_both_tokens() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == (1, 2, 9)
    assert first_difference([1, 2], [1, 2, 3]) == (2, -1, 3)


def test_an_arm_is_compared_with_the_plain_loop_of_as_many_threads() -> None:
    two = Arm(Kind.WHOLE, 2)
    arms = [WHOLE, two, Arm(Kind.WHOLE_MTP, 2), ONE_STAGE, split("auto", 20.0)]
    found = [reference_of(arm, arms) for arm in arms]
    assert found == [None, None, two, WHOLE, WHOLE]


def test_without_llama_cpp_it_is_the_plain_split_with_the_same_delay() -> None:
    arms = [split(), split("auto"), split(rtt_ms=20.0), split("auto", 20.0)]
    found = [reference_of(arm, arms) for arm in arms]
    assert found == [None, arms[0], None, arms[2]]


@pytest.mark.model
def test_the_gap_lies_between_the_two_likeliest_tokens() -> None:
    model = ModelFile.open(demo_model())
    prompts = PromptBuilder(model)
    tokens = prompts.tokenizer.encode("one two three four five six", special=False)
    prompts.close()
    stage = Stage(whole_model(model), ComputeOptions(context=64))
    stage.forward(0, 0, tokens=tokens)
    logits = sorted(stage.logits(len(tokens) - 1).tolist())
    stage.close()
    with PlainLoop(demo_model(), context=64) as loop:
        assert loop.top_two_gap(tokens) == pytest.approx(logits[-1] - logits[-2])
