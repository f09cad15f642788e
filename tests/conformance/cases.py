"""The tiny models: for each architecture the keys that llama.cpp's converter (`conversion/*.py`) writes."""

from __future__ import annotations

import re
from typing import Any

import gguf

from tests.conformance.tiny import Shapes, TinyModel, fused_qkv, without

Q8_0 = gguf.GGMLQuantizationType.Q8_0
Q4_0 = gguf.GGMLQuantizationType.Q4_0
MXFP4 = gguf.GGMLQuantizationType.MXFP4


Keys = dict[str, Any]


def _keys(n_layers: int, *, n_embd: int = 64, heads: int = 2, kv_heads: int = 1, **more: Any) -> Keys:
    """Keys that nearly every converter writes (TextModel.set_gguf_parameters); `__` stands for a dot."""
    keys: Keys = {
        "vocab_size": 64,
        "context_length": 2048,
        "embedding_length": n_embd,
        "block_count": n_layers,
        "feed_forward_length": 96,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    keys.update({name.replace("__", "."): value for name, value in more.items()})
    return keys


EXPERTS: Keys = {"expert_count": 4, "expert_used_count": 2}
HEADS_OF_32: Keys = {"attention__key_length": 32, "attention__value_length": 32}
GRANITE: Keys = {
    "rope__dimension_count": 32,
    "attention__scale": 0.2,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
}
GLM4MOE: Keys = {
    **HEADS_OF_32,
    **EXPERTS,
    "rope__dimension_count": 16,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "leading_dense_block_count": 2,
    "expert_gating_func": 2,
    "expert_weights_scale": 1.0,
    "expert_weights_norm": True,
}
# 32 latent values, 16 with rotary embedding and 24 without.
DEEPSEEK2: Keys = {
    **EXPERTS,
    "attention__kv_lora_rank": 32,
    "attention__key_length": 48,
    "attention__value_length": 32,
    "attention__key_length_mla": 40,
    "attention__value_length_mla": 32,
    "rope__dimension_count": 16,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
}
QUERY_RANK: Keys = {"attention__q_lora_rank": 32}


def _mimo2(n_blocks: int, pattern: list[int], **more: Any) -> Keys:
    return _keys(
        n_blocks,
        **{
            "attention__head_count_kv": [2 if slides else 1 for slides in pattern],
            "attention__sliding_window": 8,
            "attention__sliding_window_pattern": pattern,
            "attention__key_length": 32,
            "attention__value_length": 16,
            "attention__value_scale": 0.7,
            "rope__dimension_count": 16,
            "rope__freq_base_swa": 5000.0,
            "expert_feed_forward_length": 32,
            **EXPERTS,
            **more,
        },
    )


def _mimo2_tensors(shapes: Shapes) -> Shapes:
    """Layer 0 and the NextN blocks are dense, the others have experts; queries, keys and values are fused."""
    nextn = {name.split(".nextn")[0] for name in shapes if ".nextn." in name}
    dense = r"blk\.\d+\.ffn_(gate|up|down)\.weight"
    experts = r"blk\.\d+\.(ffn_gate_inp|ffn_\w+_exps|exp_probs_b)\.\w+"
    kept = {}
    for name, shape in shapes.items():
        is_dense = ".".join(name.split(".")[:2]) in {"blk.0", *nextn}
        own_vocabulary = "embed_tokens" in name or "shared_head_head" in name
        if not own_vocabulary and not re.fullmatch(experts if is_dense else dense, name):
            kept[name] = shape
    return fused_qkv(kept)


def _models(*models: TinyModel) -> dict[str, TinyModel]:
    return {model.name: model for model in models}


PLAIN = [
    TinyModel("arcee", "arcee", _keys(4, rope__dimension_count=32)),
    TinyModel(
        "bailingmoe2",
        "bailingmoe2",
        _keys(
            4,
            leading_dense_block_count=1,
            rope__dimension_count=16,
            expert_feed_forward_length=32,
            expert_shared_feed_forward_length=32,
            expert_shared_count=1,
            expert_weights_scale=2.5,
            expert_weights_norm=True,
            expert_gating_func=2,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel(
        "command-r", "command-r", _keys(4, logit_scale=0.0625, attention__layer_norm_epsilon=1e-5), tied=True
    ),
    TinyModel(
        "deepseek",
        "deepseek",
        _keys(
            4,
            kv_heads=2,
            leading_dense_block_count=2,
            rope__dimension_count=32,
            rope__scaling__type="none",
            expert_feed_forward_length=32,
            expert_shared_count=1,
            expert_weights_scale=1.0,
            **EXPERTS,
        ),
    ),
    TinyModel(
        "dots1",
        "dots1",
        _keys(
            4,
            kv_heads=2,
            leading_dense_block_count=1,
            expert_feed_forward_length=32,
            expert_shared_count=1,
            expert_weights_scale=1.5,
            expert_weights_norm=True,
            expert_gating_func=2,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel("ernie4_5", "ernie4_5", _keys(4, **HEADS_OF_32), tied=True),
    TinyModel(
        "ernie4_5-moe",
        "ernie4_5-moe",
        _keys(
            4,
            leading_dense_block_count=1,
            interleave_moe_layer_step=1,
            expert_feed_forward_length=32,
            expert_shared_feed_forward_length=32,
            expert_shared_count=1,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel("exaone", "exaone", _keys(4, rope__dimension_count=32)),
    TinyModel("gemma", "gemma", _keys(4, n_embd=96, heads=3, **HEADS_OF_32)),
    TinyModel("gemma-256", "gemma", _keys(3, n_embd=256, heads=2, **HEADS_OF_32)),
    TinyModel("granite", "granite", _keys(4, **GRANITE), tied=True),
    TinyModel("granitemoe", "granitemoe", _keys(4, **GRANITE, **EXPERTS), tied=True),
    TinyModel(
        "hunyuan-moe",
        "hunyuan-moe",
        _keys(
            4, expert_feed_forward_length=32, expert_shared_feed_forward_length=32, **EXPERTS, **HEADS_OF_32
        ),
    ),
    TinyModel("internlm2", "internlm2", _keys(4)),
    TinyModel("llama", "llama", _keys(5, rope__dimension_count=32), tied=True),
    TinyModel("llama-moe", "llama", _keys(4, rope__dimension_count=32, **EXPERTS)),
    TinyModel("llama-q8_0", "llama", _keys(4, rope__dimension_count=32), quantized=Q8_0),
    TinyModel("llama-q4_0", "llama", _keys(4, rope__dimension_count=32), tied=True, quantized=Q4_0),
    TinyModel(
        "minimax-m2",
        "minimax-m2",
        _keys(
            4,
            rope__dimension_count=16,
            expert_feed_forward_length=96,
            expert_gating_func=2,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel("minicpm", "minicpm", _keys(4, rope__dimension_count=32)),
    TinyModel(
        "mistral3",
        "mistral3",
        _keys(
            4,
            rope__dimension_count=32,
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=256,
            rope__scaling__yarn_log_multiplier=1.0,
            attention__temperature_scale=0.1,
        ),
    ),
    TinyModel("olmo2", "olmo2", _keys(4, kv_heads=2)),
    TinyModel("olmoe", "olmoe", _keys(4, kv_heads=2, **EXPERTS)),
    TinyModel(
        "phi3",
        "phi3",
        _keys(
            4,
            kv_heads=2,
            rope__dimension_count=32,
            rope__scaling__original_context_length=512,
            rope__scaling__attn_factor=1.2,
            attention__sliding_window=0,
        ),
        edit=fused_qkv,
    ),
    TinyModel("phimoe", "phimoe", _keys(4, rope__dimension_count=32, **EXPERTS)),
    TinyModel("qwen2", "qwen2", _keys(4)),
    TinyModel("qwen2-tied", "qwen2", _keys(3), tied=True, quantized=Q8_0),
    TinyModel(
        "qwen2moe",
        "qwen2moe",
        _keys(4, expert_feed_forward_length=32, expert_shared_feed_forward_length=64, **EXPERTS),
    ),
    TinyModel("qwen3", "qwen3", _keys(4, **HEADS_OF_32), tied=True),
    TinyModel("qwen3moe", "qwen3moe", _keys(4, expert_feed_forward_length=32, **EXPERTS, **HEADS_OF_32)),
    TinyModel(
        "qwen3vl",
        "qwen3vl",
        _keys(4, rope__dimension_sections=[6, 5, 5, 0], n_deepstack_layers=2, **HEADS_OF_32),
        tied=True,
    ),
    TinyModel(
        "qwen3vlmoe",
        "qwen3vlmoe",
        _keys(
            4,
            rope__dimension_sections=[6, 5, 5, 0],
            n_deepstack_layers=2,
            expert_feed_forward_length=32,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel("seed_oss", "seed_oss", _keys(4, **HEADS_OF_32)),
    TinyModel("smollm3", "smollm3", _keys(9, rope__dimension_count=32), tied=True),
    TinyModel("starcoder2", "starcoder2", _keys(4, attention__layer_norm_epsilon=1e-5)),
]

SLIDING = [
    TinyModel(
        "gemma2",
        "gemma2",
        _keys(
            6,
            n_embd=96,
            heads=3,
            attention__sliding_window=8,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            **HEADS_OF_32,
        ),
    ),
    TinyModel(
        "gemma3",
        "gemma3",
        _keys(
            8,
            n_embd=96,
            heads=3,
            attention__sliding_window=8,
            rope__scaling__type="linear",
            rope__scaling__factor=8.0,
            **HEADS_OF_32,
        ),
    ),
    TinyModel("gemma3-dense", "gemma3", _keys(3, n_embd=96, heads=3, **HEADS_OF_32), tied=True),
    TinyModel(
        "gemma3-q8_0",
        "gemma3",
        _keys(7, attention__sliding_window=8, **HEADS_OF_32),
        tied=True,
        quantized=Q8_0,
    ),
    TinyModel(
        "gpt-oss",
        "gpt-oss",
        _keys(
            6,
            attention__sliding_window=8,
            expert_feed_forward_length=32,
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=256,
            **EXPERTS,
            **HEADS_OF_32,
        ),
    ),
    TinyModel(
        "gpt-oss-mxfp4",
        "gpt-oss",
        _keys(
            3,
            attention__sliding_window=8,
            expert_feed_forward_length=32,
            **EXPERTS,
            **HEADS_OF_32,
        ),
        quantized=MXFP4,
    ),
    TinyModel(
        "olmo3",
        "olmo2",
        _keys(
            6,
            kv_heads=2,
            attention__sliding_window=8,
            attention__sliding_window_pattern=[layer % 4 != 3 for layer in range(6)],
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=256,
        ),
    ),
]

NEXTN = [
    TinyModel(
        "mimo2",
        "mimo2",
        _mimo2(8, [0, 1, 1, 1, 0, 0, 1, 1], nextn_predict_layers=1),
        edit=_mimo2_tensors,
    ),
    # As published: three NextN blocks, of which llama.cpp drafts with the first.
    TinyModel(
        "mimo2-3",
        "mimo2",
        _mimo2(6, [0, 1, 1, 1, 1, 1], nextn_predict_layers=3),
        edit=_mimo2_tensors,
    ),
    # NextN blocks are announced, but not there.
    TinyModel(
        "mimo2-trunk",
        "mimo2",
        _mimo2(4, [0, 1, 1, 1], nextn_predict_layers=1),
        edit=lambda shapes: without(r"blk\.3\..*")(_mimo2_tensors(shapes)),
    ),
    TinyModel("glm4moe", "glm4moe", _keys(6, nextn_predict_layers=1, **GLM4MOE)),
    TinyModel(
        "glm4moe-v",
        "glm4moe",
        _keys(5, nextn_predict_layers=1, rope__dimension_sections=[2, 3, 3, 0], **GLM4MOE),
    ),
    TinyModel("glm4", "glm4", _keys(4, rope__dimension_count=16, **HEADS_OF_32)),
    TinyModel(
        "glm4v",
        "glm4",
        _keys(4, rope__dimension_count=16, rope__dimension_sections=[2, 3, 3, 0], **HEADS_OF_32),
    ),
    TinyModel(
        "deepseek2",
        "deepseek2",
        _keys(
            6,
            leading_dense_block_count=2,
            nextn_predict_layers=1,
            expert_gating_func=2,
            **DEEPSEEK2,
            **QUERY_RANK,
        ),
    ),
]

QWEN35: Keys = {
    **HEADS_OF_32,
    "rope__dimension_count": 16,
    "rope__dimension_sections": [3, 3, 2, 0],
    "ssm__conv_kernel": 4,
    "ssm__state_size": 16,
    "ssm__group_count": 2,
    "ssm__time_step_rank": 4,
    "ssm__inner_size": 64,
    "full_attention_interval": 4,
}

HYBRID = [
    TinyModel(
        "qwen3next",
        "qwen3next",
        _keys(
            6,
            expert_feed_forward_length=32,
            expert_shared_feed_forward_length=32,
            **EXPERTS,
            **{key: value for key, value in QWEN35.items() if "sections" not in key},
        ),
    ),
    TinyModel("qwen35", "qwen35", _keys(9, nextn_predict_layers=1, **QWEN35)),
    TinyModel(
        "qwen35moe",
        "qwen35moe",
        _keys(6, expert_feed_forward_length=32, expert_shared_feed_forward_length=32, **EXPERTS, **QWEN35),
    ),
]

DEEPSEEK2_COUNTS = [
    TinyModel(
        "deepseek2-dense",
        "deepseek2",
        _keys(
            4,
            leading_dense_block_count=4,
            **{key: value for key, value in DEEPSEEK2.items() if key not in EXPERTS},
            **QUERY_RANK,
        )
        | {"expert_shared_count": 0},
        tied=True,
    ),
    TinyModel(
        "deepseek2-unabsorbed",
        "deepseek2",
        _keys(
            4,
            kv_heads=2,
            leading_dense_block_count=1,
            **{key: value for key, value in DEEPSEEK2.items() if not key.endswith("_mla")},
            **QUERY_RANK,
        )
        | {"attention.key_length": 40},
    ),
    # DeepSeek-V2-Lite: no low-rank queries, and no gating function in older files.
    TinyModel("deepseek2-lite", "deepseek2", _keys(27, leading_dense_block_count=1, **DEEPSEEK2)),
    # GLM-4.7-Flash (47 layers and a NextN block), its gating function left to layer count and vocabulary.
    TinyModel(
        "glm-flash",
        "deepseek2",
        _keys(48, n_embd=32, leading_dense_block_count=1, nextn_predict_layers=1, **DEEPSEEK2, **QUERY_RANK)
        | {"vocab_size": 154880},
        tied=True,
        quantized=Q8_0,
    ),
    # Kanana-2: 48 layers with this vocabulary have no low-rank queries either.
    TinyModel(
        "kanana",
        "deepseek2",
        _keys(48, n_embd=32, leading_dense_block_count=1, **DEEPSEEK2) | {"vocab_size": 128256},
        tied=True,
        quantized=Q8_0,
    ),
    TinyModel(
        "deepseek2-49",
        "deepseek2",
        _keys(49, n_embd=32, leading_dense_block_count=1, **DEEPSEEK2, **QUERY_RANK) | {"vocab_size": 128256},
        tied=True,
        quantized=Q8_0,
    ),
]

LONG = [TinyModel("llama-48", "llama", _keys(48, rope__dimension_count=32), tied=True)]

MODELS = _models(*LONG, *PLAIN, *SLIDING, *NEXTN, *HYBRID, *DEEPSEEK2_COUNTS)

LONG_CUTS: dict[str, list[tuple[int, ...]]] = {
    "llama-48": [(1,), (47,)],
    "deepseek2-lite": [(1,), (13,), (26,), (1, 2)],
    # Slices of 26 and 27 layers, at either end and in the middle, and a stage of one layer.
    "glm-flash": [(20,), (21,), (26,), (27,), (46,), (1, 27)],
    "kanana": [(24,), (47,), (26, 27)],
    "deepseek2-49": [(1,), (26,), (48,)],
}


def cuts_of(model: TinyModel) -> list[tuple[int, ...]]:
    """Every cut in two, and every layer on its own between two others; of long models a choice."""
    if model.name in LONG_CUTS:
        return LONG_CUTS[model.name]
    n_layers = model.keys["block_count"] - model.keys.get("nextn_predict_layers", 0)
    return [(c,) for c in range(1, n_layers)] + [(c, c + 1) for c in range(1, n_layers - 1)]
