"""A grammar along a sequence: what may stand where, also after a trim and after a wrong draft."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine.compute.context import LoadedModel
from engine.compute.grammar import KEPT_STATES, Grammar
from engine.compute.sampler import Sampler
from engine.errors import UsageError
from engine.model.file import ModelFile
from engine.model.tokenizer import Tokenizer
from engine.protocol.messages import SamplingSettings

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def vocabulary(demo: ModelFile) -> Iterator[LoadedModel]:
    model = LoadedModel(demo.path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def tokenizer(demo: ModelFile) -> Iterator[Tokenizer]:
    with Tokenizer(demo.path) as opened:
        yield opened


def allowed(grammar: Grammar, n_vocab: int, tokens: list[int], position: int) -> set[int]:
    scores = np.zeros(n_vocab, dtype=np.float32)
    assert grammar.mask(scores, tokens, position)
    return set(np.flatnonzero(np.isfinite(scores)).tolist())


def test_only_what_the_grammar_allows_may_stand(vocabulary: LoadedModel, tokenizer: Tokenizer) -> None:
    grammar = Grammar('root ::= ("yes" | "no") "."', vocabulary.vocabulary, vocabulary.n_vocab, 3)
    prompt = [5, 6, 7]
    pieces = {tokenizer.piece(token) for token in allowed(grammar, vocabulary.n_vocab, prompt, 3)}
    assert b"y" in pieces
    assert b"no" in pieces
    assert all(b"yes.".startswith(piece) or b"no.".startswith(piece) for piece in pieces)
    done = prompt + tokenizer.encode("no.", special=False)
    assert all(tokenizer.is_end(token) for token in allowed(grammar, vocabulary.n_vocab, done, len(done)))
    grammar.close()


def test_a_trim_restores_the_state_of_any_position(vocabulary: LoadedModel, tokenizer: Tokenizer) -> None:
    n_vocab = vocabulary.n_vocab
    grammar = Grammar('root ::= "a" [b-c] "d" | "x" [0-9]+', vocabulary.vocabulary, n_vocab, 0)
    path, other = (tokenizer.encode(text, special=False) for text in ("abd", "x7"))
    before = [allowed(grammar, n_vocab, path, position) for position in range(2)]
    grammar.trim(0)
    after_x = allowed(grammar, n_vocab, other, 1)
    assert {tokenizer.piece(token) for token in after_x} >= {b"0", b"9"}
    grammar.trim(0)
    assert [allowed(grammar, n_vocab, path, position) for position in range(2)] == before
    grammar.close()


def test_a_draft_that_breaks_the_grammar_is_no_crash(vocabulary: LoadedModel, tokenizer: Tokenizer) -> None:
    n_vocab = vocabulary.n_vocab
    grammar = Grammar('root ::= "a" "b"*', vocabulary.vocabulary, n_vocab, 0)
    a, b, z = (tokenizer.encode(text, special=False) for text in "abz")
    wrong, right = a + z, a + b
    scores = np.zeros(n_vocab, dtype=np.float32)
    assert not grammar.mask(scores, wrong, len(wrong))
    assert not scores.any()
    assert not grammar.allows(right[0], wrong, len(wrong))
    assert grammar.allows(right[1], right, 1)
    grammar.trim(1)
    assert allowed(grammar, n_vocab, right, len(right))
    grammar.close()


def test_long_answers_keep_a_bounded_number_of_states(vocabulary: LoadedModel, tokenizer: Tokenizer) -> None:
    n_vocab = vocabulary.n_vocab
    grammar = Grammar("root ::= [ab]*", vocabulary.vocabulary, n_vocab, 0)
    tokens = tokenizer.encode("ab", special=False)[:1] * (2 * KEPT_STATES)
    wanted = allowed(grammar, n_vocab, tokens, 3)
    assert allowed(grammar, n_vocab, tokens, len(tokens)) == wanted
    assert grammar.states <= KEPT_STATES
    grammar.trim(5)
    assert allowed(grammar, n_vocab, tokens, 5) == wanted
    grammar.close()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("root ::= (", r"expecting '\)'"),
        ("root ::= missing", "Undefined rule identifier 'missing'"),
        ("root ::= root [a]", "left recursion"),
        ("start ::= [a]", "root"),
        ("root ::= [a]\0", "NUL"),
    ],
)
def test_grammars_that_cannot_be_used_are_refused_with_the_reason(
    vocabulary: LoadedModel, source: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=why):
        Grammar(source, vocabulary.vocabulary, vocabulary.n_vocab, 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draws_obey_the_grammar(vocabulary: LoadedModel, tokenizer: Tokenizer, temperature: float) -> None:
    grammar = Grammar('root ::= "[" [0-9]+ ("," [0-9]+)* "]"', vocabulary.vocabulary, vocabulary.n_vocab, 0)
    sampler = Sampler(
        SamplingSettings(temperature=temperature, top_k=50, seed=3), vocabulary.n_vocab, grammar
    )
    logits = np.random.default_rng(0).standard_normal(vocabulary.n_vocab).astype(np.float32)
    tokens: list[int] = []
    for position in range(8):
        tokens.append(sampler.draw(logits, tokens, position))
    text = b"".join(tokenizer.piece(token) for token in tokens if not tokenizer.is_end(token)).decode()
    assert text.startswith("[")
    assert set(text[1:]) <= set("0123456789,]")
    sampler.close()
