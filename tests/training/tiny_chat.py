"""A tiny random llama with a vocabulary of bytes and a chat template: it can talk, if not sensibly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAYERS, WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD_SIZE = 2, 64, 96, 4, 2, 16


def byte_tokens() -> list[str]:
    """The 256 bytes as GPT-2's vocabulary writes them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    texts = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [texts[byte] for byte in range(256)]


def write_tiny_chat(
    path: Path, *, tied: bool = True, template: str = TEMPLATE, more: dict[str, Any] | None = None
) -> None:
    """`more` are further tensors by name."""
    rng = np.random.default_rng(3)
    tokens = [*SPECIAL, *byte_tokens()]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny chat")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * 256)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["output.weight"] = (len(tokens), WIDTH)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * HEAD_SIZE, WIDTH),
            "attn_k": (KV_HEADS * HEAD_SIZE, WIDTH),
            "attn_v": (KV_HEADS * HEAD_SIZE, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD_SIZE),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (FEED_FORWARD, WIDTH),
            "ffn_up": (FEED_FORWARD, WIDTH),
            "ffn_down": (WIDTH, FEED_FORWARD),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    for name, shape in shapes.items():
        data = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.25)
        writer.add_tensor(name, 1 + data / 4 if "norm" in name else data)
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
