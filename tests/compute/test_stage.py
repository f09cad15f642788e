"""A stage alone: what it accepts, what it refuses, and that positions are authoritative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.compute.embedding import EmbeddingTable
from engine.compute.options import ComputeOptions
from engine.compute.stage import Stage
from engine.errors import BackendError, ContextFull, ProtocolError, TrimRefused, UsageError
from engine.model.slices import ensure_slice, whole_model
from tests.compute.chains import Chain
from tests.compute.conftest import TinyModels

OPTIONS = ComputeOptions(context=96, sequences=2, batch_rows=32)
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, 64, 96)]


@pytest.fixture
def whole(tiny: TinyModels) -> Iterator[Stage]:
    stage = Stage(whole_model(tiny("llama")), OPTIONS)
    yield stage
    stage.close()


@pytest.fixture
def middle(tiny: TinyModels, cache: Path) -> Iterator[Stage]:
    """Layers 1 and 2 of 5: hidden states in and out."""
    stage = Stage(ensure_slice(tiny("llama"), 1, 3, cache_dir=cache), OPTIONS)
    yield stage
    stage.close()


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 64), dtype=np.float32)


@pytest.mark.parametrize("name", ["llama", "mimo2"])  # hidden states from a layer's output; as NextN rows
def test_a_chain_computes_what_the_whole_model_computes(tiny: TinyModels, cache: Path, name: str) -> None:
    model = tiny(name)
    with Chain(model, [], OPTIONS) as whole, Chain(model, [2, 3], OPTIONS, cache) as split:
        assert len(split.stages) == 3
        for start, n in ((0, 30), (30, 1), (31, 5)):
            for chain in (whole, split):
                chain.verify(start, TOKENS[start : start + n])
            assert np.array_equal(whole.logits(), split.logits())


def test_a_call_that_begins_before_the_end_replaces_what_was_there(whole: Stage, middle: Stage) -> None:
    whole.forward(0, 0, tokens=TOKENS[:20])
    whole.forward(0, 20, tokens=TOKENS[20:24])
    wanted = whole.all_logits().copy()
    whole.forward(0, 20, tokens=TOKENS[60:80])
    assert whole.length(0) == 40
    whole.forward(0, 20, tokens=TOKENS[20:24])
    assert whole.length(0) == 24
    assert np.array_equal(whole.all_logits(), wanted)

    first = middle.forward(0, 0, hidden=rows(8))
    middle.forward(0, 8, hidden=rows(3, seed=1))
    assert np.array_equal(middle.forward(0, 0, hidden=rows(8)), first)


def test_a_call_that_begins_after_the_end_is_refused_with_both_positions(whole: Stage) -> None:
    whole.forward(0, 0, tokens=TOKENS[:5])
    with pytest.raises(ProtocolError, match=r"position 7\b.* ends at 5"):
        whole.forward(0, 7, tokens=TOKENS[7:9])
    assert whole.length(0) == 5
    whole.forward(0, 5, tokens=TOKENS[5:9])


def test_sequences_do_not_see_each_other(whole: Stage) -> None:
    whole.forward(0, 0, tokens=TOKENS[:10])
    alone = whole.logits(9).copy()
    whole.forward(1, 0, tokens=TOKENS[40:60])
    whole.trim(0, 4)
    whole.forward(0, 4, tokens=TOKENS[4:10])
    assert np.array_equal(whole.logits(5), alone)
    assert (whole.length(0), whole.length(1)) == (10, 20)
    whole.release(1)
    assert (whole.length(0), whole.length(1)) == (10, 0)


def test_every_sequence_has_the_whole_context(whole: Stage) -> None:
    for seq in (0, 1):
        for start in range(0, 96, 32):
            whole.forward(seq, start, tokens=TOKENS[start : start + 32], logits="none")
    assert (whole.length(0), whole.length(1)) == (96, 96)


def test_a_full_context_is_an_error_and_changes_nothing(whole: Stage) -> None:
    for start in range(0, 96, 32):
        whole.forward(0, start, tokens=TOKENS[start : start + 32])
    with pytest.raises(ContextFull, match="96"):
        whole.forward(0, 96, tokens=TOKENS[:1])
    with pytest.raises(ContextFull):
        whole.forward(0, 95, tokens=TOKENS[:2])
    assert whole.length(0) == 96
    whole.forward(0, 95, tokens=TOKENS[95:])


def test_more_rows_than_the_batch_are_refused_before_llama_cpp_asserts(whole: Stage, middle: Stage) -> None:
    with pytest.raises(ProtocolError, match=r"33 rows .* 1 to 32"):
        whole.forward(0, 0, tokens=TOKENS[:33])
    with pytest.raises(ProtocolError, match="0 rows"):
        whole.forward(0, 0, tokens=[])
    with pytest.raises(ProtocolError, match="33 rows"):
        middle.forward(0, 0, hidden=rows(33))
    assert middle.length(0) == 0


@pytest.mark.parametrize("token", [-1, 64, 2**31])
def test_tokens_outside_the_vocabulary_are_refused(whole: Stage, token: int) -> None:
    with pytest.raises(ProtocolError, match=f"token id {token} is outside the vocabulary of 64"):
        whole.forward(0, 0, tokens=[1, token])


@pytest.mark.parametrize(
    ("hidden", "complaint"),
    [
        (rows(4)[:, :32], "float32 \\(rows, 64\\)"),
        (rows(4).astype(np.float64), "float64"),
        (rows(4)[0], "float32 \\(64,\\)"),
        (rows(4).T.copy().T, "contiguous"),
        (np.full((2, 64), np.nan, dtype=np.float32), "finite"),
        (np.full((2, 64), np.inf, dtype=np.float32), "finite"),
        (None, "none came"),
    ],
)
def test_activations_of_the_wrong_kind_are_refused(
    middle: Stage, hidden: np.ndarray | None, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        middle.forward(0, 0, hidden=hidden)
    assert middle.length(0) == 0


def test_the_first_stage_takes_tokens_only(whole: Stage) -> None:
    with pytest.raises(ProtocolError, match="takes token ids"):
        whole.forward(0, 0, hidden=rows(2))


def test_sequences_that_do_not_exist_are_refused(whole: Stage) -> None:
    for call in (lambda: whole.forward(2, 0, tokens=[1]), lambda: whole.trim(-1, 0), lambda: whole.length(2)):
        with pytest.raises(ProtocolError, match="does not exist"):
            call()


def test_logits_can_be_asked_for_the_last_row_only(tiny: TinyModels) -> None:
    stage = Stage(whole_model(tiny("llama-q8_0")), OPTIONS)
    stage.forward(0, 0, tokens=TOKENS[:12])
    wanted = stage.logits(11).copy()
    stage.forward(0, 0, tokens=TOKENS[:12], logits="last")
    assert np.array_equal(stage.logits(11), wanted)
    with pytest.raises(BackendError, match="row 3"):
        stage.logits(3)
    stage.forward(0, 0, tokens=TOKENS[:12], logits="none")
    with pytest.raises(BackendError, match="no such rows"):
        stage.all_logits()
    stage.close()


def test_returned_hidden_states_outlive_the_next_call(middle: Stage) -> None:
    first = middle.forward(0, 0, hidden=rows(4))
    assert first is not None
    kept = first.copy()
    middle.forward(0, 4, hidden=rows(4, seed=1))
    assert np.array_equal(first, kept)


def test_a_closed_stage_raises_instead_of_crashing(tiny: TinyModels) -> None:
    stage = Stage(whole_model(tiny("llama")), OPTIONS)
    stage.forward(0, 0, tokens=TOKENS[:3])
    stage.close()
    stage.close()
    for call in (
        lambda: stage.forward(0, 3, tokens=[1]),
        lambda: stage.forward(0, 1, tokens=[1]),
        lambda: stage.logits(0),
        lambda: stage.trim(0, 1),
    ):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_a_file_that_cannot_be_loaded_gives_llama_cpps_reason(tiny: TinyModels, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(tiny("llama").path.read_bytes()[:-4000])
    with pytest.raises(BackendError, match=r"cannot load .*broken.gguf: .*(tensor|data|bounds|read)"):
        Stage(replace(whole_model(tiny("llama")), path=path), OPTIONS)


def test_a_block_whose_output_never_comes_is_an_error(tiny: TinyModels, cache: Path) -> None:
    part = ensure_slice(tiny("llama"), 1, 3, cache_dir=cache)
    stage = Stage(replace(part, rules=replace(part.rules, last_block=7)), OPTIONS)
    with pytest.raises(BackendError, match="l_out-7 has 0 bytes for 2 rows"):
        stage.forward(0, 0, hidden=rows(2))
    assert stage.length(0) == 0
    stage.close()


def test_a_first_stage_needs_the_token_embedding(tiny: TinyModels, cache: Path) -> None:
    with pytest.raises(UsageError, match="token embedding"):
        Stage(ensure_slice(tiny("llama"), 0, 2, cache_dir=cache), OPTIONS)


def test_recurrent_memory_says_that_it_cannot_be_trimmed(tiny: TinyModels) -> None:
    slice_ = whole_model(tiny("qwen35"))
    assert not slice_.rules.can_rollback
    stage = Stage(slice_, OPTIONS)
    stage.forward(0, 0, tokens=TOKENS[:10])
    wanted = stage.logits(9).copy()
    with pytest.raises(TrimRefused, match="rolled back to position 6"):
        stage.trim(0, 6)
    with pytest.raises(TrimRefused):
        stage.forward(0, 6, tokens=TOKENS[6:10])
    assert stage.length(0) == 10
    stage.release(0)
    stage.forward(0, 0, tokens=TOKENS[:10])
    assert np.array_equal(stage.logits(9), wanted)
    stage.close()


def test_a_refused_batch_is_an_error_and_leaves_the_cache_where_it_was(whole: Stage) -> None:
    whole.forward(0, 0, tokens=TOKENS[:8])
    from engine.compute.context import Outputs

    with pytest.raises(BackendError, match="invalid batch"):
        whole.context.decode(0, 8, 2, Outputs.ALL, tokens=[1, 64])  # past the stage's own check
    whole.forward(0, 8, tokens=TOKENS[8:10])


def test_hidden_states_take_the_place_of_the_graphs_input(tiny: TinyModels, cache: Path) -> None:
    """gemma's graph would scale them once more."""
    model = tiny("gemma2")
    parts = [ensure_slice(model, 0, 2, cache_dir=cache), ensure_slice(model, 2, 6, cache_dir=cache)]
    assert parts[1].rules.input_tensor == "inp_scaled"
    with Chain(model, [], OPTIONS) as whole, Chain(model, [2], OPTIONS, cache) as split:
        for chain in (whole, split):
            chain.verify(0, TOKENS[:20])
        assert np.array_equal(whole.logits(), split.logits())
        expected = whole.logits().copy()
    embeddings = EmbeddingTable(model, parts[0].rules.input_scale)
    as_batch = Stage(replace(parts[1], rules=replace(parts[1].rules, input_tensor="")), OPTIONS)
    first = Stage(parts[0], OPTIONS, embeddings=embeddings)
    as_batch.forward(0, 0, hidden=first.forward(0, 0, tokens=TOKENS[:20]))
    assert not np.array_equal(expected, as_batch.all_logits())
    as_batch.close()
    first.close()


def test_a_tensor_that_the_graph_does_not_have_is_an_error(tiny: TinyModels, cache: Path) -> None:
    part = ensure_slice(tiny("llama"), 1, 5, cache_dir=cache)
    stage = Stage(replace(part, rules=replace(part.rules, input_tensor="no_such_tensor")), OPTIONS)
    with pytest.raises(BackendError, match="no_such_tensor has 0 bytes for 4 rows"):
        stage.forward(0, 0, hidden=np.zeros((4, stage.n_embd), dtype=np.float32))
    assert stage.length(0) == 0
    stage.close()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"threads": 0}, {"sequences": 257}, {"batch_rows": 0}])
def test_options_without_meaning_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        ComputeOptions(**{"context": 64, **wrong})
