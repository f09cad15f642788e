"""GGUF files for the tests: small ones by the `gguf` package, and headers put together byte by byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

N_EMBD = 32
N_VOCAB = 48
N_LAYERS = 3


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def number_key(key: str, value: int, kind: GGUFValueType = GGUFValueType.UINT32) -> bytes:
    return string(key) + struct.pack("<II", kind, value)


def tensor_row(
    name: str, shape: tuple[int, ...], kind: int = GGMLQuantizationType.F32, offset: int = 0
) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@dataclass
class RawGguf:
    """A GGUF of which every part can be made wrong."""

    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""

    def write(self, path: Path) -> Path:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        path.write_bytes(head + bytes(-len(head) % 32) + self.data)
        return path


def write_small_model(
    path: Path,
    *,
    name: str = "Small",
    split_max_tensors: int = 0,
    small_first_shard: bool = False,
    seed: int = 0,
) -> Path:
    """A llama model of three layers with random weights; one file, or shards if a split is asked for."""
    random = np.random.default_rng(seed)
    writer = GGUFWriter(
        path, "llama", split_max_tensors=split_max_tensors, small_first_shard=small_first_shard
    )
    writer.add_name("Small")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i}" for i in range(N_VOCAB)])
    writer.add_key_value("test.flags", [True, False], GGUFValueType.ARRAY, GGUFValueType.BOOL)

    def matrix(tensor: str, rows: int, columns: int) -> None:
        data = random.integers(0, 256, (rows, columns // 32 * 34), dtype=np.uint8)
        writer.add_tensor(tensor, data, raw_dtype=GGMLQuantizationType.Q8_0)

    def vector(tensor: str, length: int) -> None:
        writer.add_tensor(tensor, random.random(length, dtype=np.float32))

    matrix("token_embd.weight", N_VOCAB, N_EMBD)
    for layer in range(N_LAYERS):
        prefix = f"blk.{layer}."
        vector(prefix + "attn_norm.weight", N_EMBD)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{prefix}{part}.weight", N_EMBD, N_EMBD)
        vector(prefix + "ffn_norm.weight", N_EMBD)
        matrix(prefix + "ffn_gate.weight", 64, N_EMBD)
        matrix(prefix + "ffn_up.weight", 64, N_EMBD)
        matrix(prefix + "ffn_down.weight", N_EMBD, 64)
    vector("output_norm.weight", N_EMBD)
    matrix("output.weight", N_VOCAB, N_EMBD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
