"""What is planned for a slice, and what is refused, by name. No llama.cpp: tests/conformance computes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.errors import ArchitectureRefused, CutRefused, ModelFileError, UsageError
from engine.model.architectures import ARCHITECTURES, REFUSED, SliceRules, architecture_of
from engine.model.file import ModelFile
from engine.model.rebase import Block, SlicePlan, nextn_obstacle, plan_slice, whole_rules

NEXTN = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "attn_qkv", "ffn_gate", "ffn_down", "ffn_up")


ROOT_OF_96 = float(np.sqrt(np.float32(96)))


class Maker:
    """Writes models whose tensors are a few zeros."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self, architecture: str, n_layers: int, *, tensors: Iterable[str] = (), **keys: Any
    ) -> ModelFile:
        path = self.directory / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        keys = {"block_count": n_layers, "embedding_length": 96, "context_length": 64, **keys}
        for name, value in keys.items():
            key = f"{architecture}.{name.replace('__', '.')}"
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            else:
                writer.add_uint32(key, value)
        writer.add_token_list([b"a", b"b"])
        for name in ["token_embd", *(f"blk.{i}.attn_norm" for i in range(n_layers)), *tensors]:
            writer.add_tensor(f"{name}.weight", np.zeros((40, 96), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return ModelFile.open(path)


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def stated(plan: SlicePlan, name: str) -> Any:
    """The value of a key that the plan writes (with or without the architecture's prefix)."""
    for key, (value, _) in plan.set_metadata.items():
        if key == name or key.partition(".")[2] == name:
            return value
    raise KeyError(name)


def test_rules_survive_the_slice_file() -> None:
    rules = SliceRules(
        input_scale=2.5,
        input_tensor="embd",
        capture="nextn",
        mrope=True,
        last_block=7,
        can_rollback=False,
    )
    assert SliceRules.from_json(json.loads(json.dumps(rules.to_json()))) == rules


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(make: Maker) -> None:
    with pytest.raises(ArchitectureRefused) as caught:
        architecture_of(make("mamba2", 4))
    for name in ARCHITECTURES:
        assert name in str(caught.value)


@pytest.mark.parametrize("architecture", ["gemma3n", "rwkv7", "gemma4", "deepseek4", "gpt2", "llama4"])
def test_what_cannot_be_cut_is_refused_with_its_reason(make: Maker, architecture: str) -> None:
    with pytest.raises(ArchitectureRefused, match=architecture) as caught:
        plan_slice(make(architecture, 4), 0, 2)
    assert "has not been proven" not in str(caught.value)


@pytest.mark.parametrize(("first", "end"), [(0, 0), (2, 2), (3, 2), (-1, 2), (0, 5), (4, 5)])
def test_layers_that_do_not_exist_are_a_usage_error(make: Maker, first: int, end: int) -> None:
    with pytest.raises(UsageError, match="0:4"):
        plan_slice(make("llama", 4), first, end)


def test_only_the_last_slice_has_a_vocabulary(make: Maker) -> None:
    model = make("llama", 4, tensors=["output"], vocab_size=40)
    front, back = plan_slice(model, 0, 2), plan_slice(model, 2, 4)
    assert stated(front, "tokenizer.ggml.model") == "none"
    assert stated(front, "vocab_size") == 32
    assert "tokenizer.ggml.tokens" in front.drop_metadata
    assert (front.token_embd, front.output) == ("stub", "drop")
    assert "tokenizer.ggml.model" not in back.set_metadata
    assert not any(key.startswith("tokenizer.") for key in back.drop_metadata)
    assert (back.token_embd, back.output) == ("from_output", "drop")


def test_a_tied_head_is_the_token_embedding(make: Maker) -> None:
    assert plan_slice(make("llama", 4), 2, 4).token_embd == "full"


def test_where_the_head_must_be_separate_it_stays_so(make: Maker) -> None:
    model = make("qwen2moe", 4, tensors=["output"])
    front, back = plan_slice(model, 0, 2), plan_slice(model, 2, 4)
    assert (front.token_embd, front.output) == ("stub", "stub")
    assert (back.token_embd, back.output) == ("zero", "full")


def test_a_bias_of_the_head_keeps_the_head(make: Maker) -> None:
    model = make("qwen2", 4, tensors=["output", "output.bias"])
    back = plan_slice(model, 2, 4)
    assert (back.token_embd, back.output) == ("zero", "full")


def test_per_layer_arrays_follow_their_layers(make: Maker) -> None:
    model = make(
        "mimo2",
        4,
        attention__head_count_kv=[1, 2, 3, 4],
        attention__sliding_window=8,
        attention__sliding_window_pattern=[0, 1, 0, 1],
    )
    plan = plan_slice(model, 1, 3)
    assert stated(plan, "attention.head_count_kv") == [2, 3]
    assert stated(plan, "attention.sliding_window_pattern") == [True, False]
    assert stated(plan, "block_count") == 2


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("attention.head_count_kv", [1, 2, 3], "has 3 items for 4 blocks"),
        ("attention.head_count_kv", [1, 1, 1, 2], "differs between layers"),
        ("attention.sliding_window_pattern", [True] * 5, "has 5 items for 4 blocks"),
        ("some.array", [1, 2, 3, 4], "does not know how to cut"),
        ("attention.sliding_window", "wide", "is not a number"),
    ],
)
def test_metadata_that_contradicts_itself_is_named(make: Maker, key: str, value: Any, problem: str) -> None:
    model = make("gemma3", 4, **{"attention__sliding_window": 8, key.replace(".", "__"): value})
    with pytest.raises(ModelFileError, match=problem) as caught:
        plan_slice(model, 0, 2)
    assert f"gemma3.{key}" in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "period"),
    [("gemma2", 2), ("gpt-oss", 2), ("gemma3", 6), ("olmo2", 4)],
)
def test_an_implied_window_pattern_is_written_out(make: Maker, architecture: str, period: int) -> None:
    model = make(architecture, 13, attention__sliding_window=8)
    whole = [layer % period != period - 1 for layer in range(13)]
    for first, end in [(0, 5), (1, 9), (5, 13), (7, 9)]:
        plan = plan_slice(model, first, end)
        assert stated(plan, "attention.sliding_window_pattern") == whole[first:end]


def test_a_stated_period_replaces_the_implied_one(make: Maker) -> None:
    model = make("gemma3", 6, attention__sliding_window=8, attention__sliding_window_pattern=3)
    assert stated(plan_slice(model, 1, 6), "attention.sliding_window_pattern") == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_dense_layers_alone_slide_over_a_window_that_is_never_reached(make: Maker) -> None:
    """llama.cpp asserts that a model of these architectures has a sliding layer."""
    model = make("gpt-oss", 4, attention__sliding_window=8, rope__freq_base=5000.0)
    plan = plan_slice(model, 1, 2)
    assert stated(plan, "attention.sliding_window_pattern") == [True]
    assert stated(plan, "attention.sliding_window") == 1 << 24
    assert stated(plan, "rope.freq_base_swa") == 5000.0


def test_dense_layers_alone_need_no_window_where_it_is_optional(make: Maker) -> None:
    plan = plan_slice(make("gemma3", 7, attention__sliding_window=8), 5, 6)
    assert stated(plan, "attention.sliding_window") == 0
    assert "gemma3.attention.sliding_window_pattern" not in plan.set_metadata


def test_scaled_positions_of_dense_layers_cannot_be_imitated(make: Maker) -> None:
    model = make(
        "mimo2",
        4,
        rope__scaling__factor=4.0,
        attention__sliding_window=8,
        attention__sliding_window_pattern=[0, 1, 1, 0],
    )
    assert plan_slice(model, 0, 2)
    with pytest.raises(CutRefused, match="mimo2"):
        plan_slice(model, 0, 1)


def test_norms_that_are_loaded_by_layer_count_refuse_the_model(make: Maker) -> None:
    assert plan_slice(make("command-r", 40), 0, 20)
    with pytest.raises(ArchitectureRefused, match="64 layers"):
        plan_slice(make("command-r", 64), 0, 20)


def test_experts_in_each_nth_layer_refuse_the_model(make: Maker) -> None:
    assert plan_slice(make("ernie4_5-moe", 4, interleave_moe_layer_step=1), 0, 2)
    with pytest.raises(ArchitectureRefused, match="layer index"):
        plan_slice(make("ernie4_5-moe", 4, interleave_moe_layer_step=2), 0, 2)


@pytest.mark.parametrize(("architecture", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_an_attention_scale_by_layer_count_refuses_the_model(
    make: Maker, architecture: str, n_layers: int
) -> None:
    with pytest.raises(ArchitectureRefused, match=str(n_layers)):
        plan_slice(make(architecture, n_layers, attention__sliding_window=8), 0, 10)
    longer = make(architecture, n_layers + 1, attention__sliding_window=8)
    assert plan_slice(longer, 0, 10)
    with pytest.raises(CutRefused):
        plan_slice(longer, 1, n_layers + 1)


def test_leading_dense_layers_are_counted_from_the_cut(make: Maker) -> None:
    model = make("deepseek2", 8, leading_dense_block_count=3, attention__q_lora_rank=8, vocab_size=40)
    counts = [stated(plan_slice(model, first, 8), "leading_dense_block_count") for first in (0, 2, 3, 5)]
    assert counts == [3, 1, 0, 0]


def test_deepseek2_avoids_the_layer_counts_of_its_lite_models(make: Maker) -> None:
    model = make("deepseek2", 60, leading_dense_block_count=1, attention__q_lora_rank=8, vocab_size=128256)
    n_blocks = {n: len(plan_slice(model, 2, 2 + n).blocks) for n in (25, 26, 27, 28, 48)}
    assert n_blocks == {25: 25, 26: 28, 27: 28, 28: 28, 48: 48}
    last = plan_slice(model, 12, 60)  # has the vocabulary with which 48 layers count as lite
    assert last.blocks[:2] == (Block(0, identity=True), Block(12))
    assert stated(last, "leading_dense_block_count") == 1
    assert last.rules.last_block == 48


def test_deepseek2_lite_says_that_it_has_no_low_rank_queries(make: Maker) -> None:
    plan = plan_slice(make("deepseek2", 27, vocab_size=40), 3, 9)
    assert stated(plan, "attention.q_lora_rank") == 0
    assert stated(plan, "expert_gating_func") == 1


@pytest.mark.parametrize(
    ("n_layers", "vocabulary", "function"), [(47, 154880, 2), (48, 154880, 2), (47, 40, 1), (46, 154880, 1)]
)
def test_deepseek2_states_its_gating_function(
    make: Maker, n_layers: int, vocabulary: int, function: int
) -> None:
    model = make("deepseek2", n_layers, attention__q_lora_rank=8, vocab_size=vocabulary)
    assert stated(plan_slice(model, 0, 5), "expert_gating_func") == function


def test_smollm3_is_padded_to_the_phase_of_its_rope_pattern(make: Maker) -> None:
    model = make("smollm3", 9)
    assert [len(plan_slice(model, first, 9).blocks) - (9 - first) for first in range(8)] == [0, 1, 2, 3] * 2
    plan = plan_slice(model, 6, 8)
    assert plan.blocks == (Block(6, identity=True), Block(6, identity=True), Block(6), Block(7))
    assert plan.rules.last_block == 3


def test_hybrids_get_a_layer_of_the_kind_that_is_missing(make: Maker) -> None:
    model = make("qwen35", 8, full_attention_interval=4)
    assert plan_slice(model, 0, 3).blocks[0] == Block(3, identity=True)
    assert plan_slice(model, 3, 4).blocks == (Block(0, identity=True), Block(3))
    assert plan_slice(model, 2, 4).blocks == (Block(2), Block(3))
    assert stated(plan_slice(model, 3, 4), "attention.recurrent_layers") == [True, False]
    assert not plan_slice(model, 2, 4).rules.can_rollback


@pytest.mark.parametrize(
    ("architecture", "keys", "input_scale", "input_tensor"),
    [
        ("llama", {}, 1.0, ""),
        ("gemma3", {}, ROOT_OF_96, ""),
        ("gemma2", {"attention__sliding_window": 8}, ROOT_OF_96, "inp_scaled"),
        ("glm4", {}, 1.0, "embd"),
        ("granite", {"embedding_scale": 12.0}, 12.0, ""),
        ("granite", {}, 1.0, ""),
        ("minicpm", {}, 12.0, ""),
    ],
)
def test_the_input_is_scaled_as_the_graph_would(
    make: Maker, architecture: str, keys: dict[str, Any], input_scale: float, input_tensor: str
) -> None:
    rules = plan_slice(make(architecture, 4, **keys), 1, 3).rules
    assert rules.input_scale == input_scale
    assert rules.input_tensor == input_tensor


def test_a_scale_that_the_graph_applies_to_hidden_states_is_switched_off(make: Maker) -> None:
    plan = plan_slice(make("granite", 4, embedding_scale=12.0), 0, 2)
    assert stated(plan, "embedding_scale") == 0.0


def test_minicpm_keeps_the_residual_scale_of_the_whole_model(make: Maker) -> None:
    assert stated(plan_slice(make("minicpm", 4), 0, 2), "residual_scale") == pytest.approx(0.7)
    assert (
        "minicpm.residual_scale" not in plan_slice(make("minicpm", 4, residual_scale=0.5), 0, 2).set_metadata
    )


def test_the_last_slice_keeps_the_nextn_block(make: Maker) -> None:
    model = make(
        "mimo2",
        5,
        tensors=["output", *(f"blk.4.{name}" for name in NEXTN)],
        nextn_predict_layers=1,
        attention__sliding_window=8,
        attention__sliding_window_pattern=[1, 0, 1, 1, 1],
    )
    front, back = plan_slice(model, 0, 2), plan_slice(model, 2, 4)
    assert not front.native_mtp
    assert stated(front, "nextn_predict_layers") == 0
    assert back.native_mtp
    assert back.blocks == (Block(2), Block(3), Block(4))
    assert (stated(back, "block_count"), stated(back, "nextn_predict_layers")) == (3, 1)
    assert (back.token_embd, back.output) == ("full", "full")
    assert back.rules.last_block == 1


@pytest.mark.parametrize("missing", NEXTN)
def test_a_nextn_block_that_lacks_a_tensor_is_left_out(make: Maker, missing: str) -> None:
    model = make(
        "mimo2",
        5,
        tensors=["output", *(f"blk.4.{name}" for name in NEXTN if name != missing)],
        nextn_predict_layers=1,
        attention__sliding_window=8,
        attention__sliding_window_pattern=[1] * 5,
    )
    assert f"blk.4.{missing}.weight" in nextn_obstacle(model)
    back = plan_slice(model, 2, 4)
    assert not back.native_mtp
    assert back.blocks == (Block(2), Block(3))


def test_what_keeps_a_nextn_block_from_drafting_is_said(make: Maker) -> None:
    assert "no NextN block" in nextn_obstacle(make("llama", 4))
    two = make("deepseek2", 6, nextn_predict_layers=2, attention__q_lora_rank=8)
    assert "there are 2" in nextn_obstacle(two)
    tensors = [f"blk.4.{name}" for name in NEXTN]
    unabsorbed = make("deepseek2", 5, tensors=tensors, nextn_predict_layers=1, attention__q_lora_rank=8)
    assert "key_length_mla" in nextn_obstacle(unabsorbed)
    vision = make(
        "glm4moe", 5, tensors=tensors, nextn_predict_layers=1, rope__dimension_sections=[2, 3, 3, 0]
    )
    assert "M-RoPE" in nextn_obstacle(vision)


def test_any_architecture_runs_as_a_whole(make: Maker) -> None:
    assert not whole_rules(make("mamba2", 4)).can_rollback
    assert whole_rules(make("llama", 4)).can_rollback


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"mimo2"}))
def test_every_layer_is_in_its_slice_once(make: Maker, name: str) -> None:
    model = make(name, 6, tensors=["output"], attention__sliding_window=8, attention__q_lora_rank=8)
    for first in range(6):
        plan = plan_slice(model, first, 6)
        sources = [block.source for block in plan.blocks if not block.identity]
        assert sources == list(range(first, 6))
        assert plan.blocks[plan.rules.last_block] == Block(5)


def test_the_documentation_lists_what_is_claimed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text(encoding="utf-8")
    claimed, _, refused = text.partition("## Speculation")
    assert [name for name in ARCHITECTURES if f"`{name}`" not in claimed] == []
    assert [name for name in REFUSED if f"`{name}`" not in refused] == []
