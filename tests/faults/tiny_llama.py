"""A llama of a few hundred kilobytes that can talk: byte tokens, a chat template, random weights.

Small enough that a stage loads it in the time its process takes to start, and its answers depend on every
row of every cache: with sampling, a single wrong row shows in the text at once.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Q4_1 = gguf.GGMLQuantizationType.Q4_1

LAYERS = 6
WIDTH = 64
FEED_FORWARD = 128
HEADS = 4
CONTEXT = 2048
SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_tiny_llama(path: Path) -> Path:
    """Write the model; the same bytes every time."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_vocabulary(writer)
    _add_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([*kinds, *[gguf.TokenType.BYTE] * 256])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)


def _add_tensors(writer: gguf.GGUFWriter) -> None:
    rng = np.random.default_rng(7)

    def put(name: str, data: NDArray[np.float32]) -> None:
        # Of this type, llama.cpp computes every row alike, alone or in a batch of any size.
        writer.add_tensor(name, gguf.quants.quantize(data, Q4_1), raw_dtype=Q4_1)

    def add(name: str, *shape: int, scale: float = 0.15) -> None:
        put(name, rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))

    vocabulary = len(SPECIAL) + 256
    add("token_embd.weight", vocabulary, WIDTH, scale=1.0)
    output = rng.standard_normal((vocabulary, WIDTH), dtype=np.float32) * np.float32(0.4)

    printable = range(len(SPECIAL) + ord(" "), len(SPECIAL) + ord("~") + 1)
    output[[token for token in range(vocabulary) if token not in printable]] = 0  # hardly ever said
    put("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(WIDTH, dtype=np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"{block}{name}.weight", FEED_FORWARD, WIDTH)
        add(f"{block}ffn_down.weight", WIDTH, FEED_FORWARD)
