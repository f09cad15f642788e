"""Every claimed architecture, split at every cut, computes what the whole model computes, bit for bit."""

from __future__ import annotations

import pytest

from engine.model.architectures import ARCHITECTURES
from tests.conformance.cases import MODELS, cuts_of
from tests.conformance.conftest import Worker

pytestmark = pytest.mark.slow


def test_every_claimed_architecture_has_a_tiny_model() -> None:
    assert {model.architecture for model in MODELS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", MODELS)
def test_split_equals_whole(worker: Worker, name: str) -> None:
    wrong = {}
    for cuts in cuts_of(MODELS[name]):
        result = worker.compare(name, cuts)
        if "difference" not in result:
            wrong[cuts] = result
            continue
        assert result["spread"] > result["largest"] / 50, "logits that are all alike would prove nothing"
        if result["difference"] != 0.0 or result["draft_difference"] not in (None, 0.0):
            wrong[cuts] = result
    assert not wrong


@pytest.mark.parametrize("name", ["mimo2", "glm4moe", "deepseek2", "glm-flash"])
def test_the_last_stage_drafts_as_the_whole_model_does(worker: Worker, name: str) -> None:
    result = worker.compare(name, cuts_of(MODELS[name])[0])
    assert result["native_mtp"]
    assert result["draft_difference"] == 0.0


@pytest.mark.parametrize(
    ("name", "cuts", "rule"),
    [
        ("gemma2", [3], "attention.sliding_window_pattern"),
        ("gpt-oss", [3], "attention.sliding_window_pattern"),
        ("gemma3", [4], "attention.sliding_window_pattern"),
        ("olmo3", [2], "attention.sliding_window_pattern"),
        ("mimo2", [3], "attention.sliding_window_pattern"),
        ("smollm3", [3], "pads"),
        ("minicpm", [2], "residual_scale"),
        ("minicpm", [2], "embedding_scale"),
        ("granite", [2], "embedding_scale"),
        ("glm-flash", [24], "expert_gating_func"),
        ("gemma3", [6], "scale"),
        ("gemma2", [2], "scale"),
        ("gemma2", [2], "input tensor"),
    ],
)
def test_a_slice_without_its_rule_is_noticed(worker: Worker, name: str, cuts: list[int], rule: str) -> None:
    result = worker.compare(name, cuts, spoil=rule)
    assert result["difference"] > 0.01 * result["largest"]


@pytest.mark.parametrize(
    ("name", "cuts", "rule"),
    [
        ("deepseek2", [1], "leading_dense_block_count"),
        ("glm4moe", [1], "leading_dense_block_count"),
        ("deepseek2-49", [26], "pads"),
        ("deepseek2-lite", [13], "attention.q_lora_rank"),
        ("glm4moe", [2], "nextn_predict_layers"),
        ("qwen35", [6], "attention.recurrent_layers"),
        ("mimo2", [2], "attention.head_count_kv"),
    ],
)
def test_a_slice_without_its_rule_is_refused(worker: Worker, name: str, cuts: list[int], rule: str) -> None:
    assert worker.compare(name, cuts, spoil=rule)["error"] == "BackendError"


@pytest.mark.parametrize(
    ("name", "cuts", "rule"),
    [("glm4moe", [2], "input tensor"), ("glm4", [2], "input tensor"), ("qwen35", [1], "pads")],
)
def test_a_slice_without_its_rule_aborts(worker: Worker, name: str, cuts: list[int], rule: str) -> None:
    assert worker.compare(name, cuts, spoil=rule)["died"] != 0
