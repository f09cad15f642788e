"""Tokens and texts, on the default model's vocabulary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import BackendError
from engine.model.demo import demo_model
from engine.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with Tokenizer(demo_model()) as opened:
        yield opened


@pytest.mark.model
@pytest.mark.parametrize(
    "text", ["", "Hello, world!", "日本 👩‍💻 naïve", " " * 500, "a\0b", "x" * 3000, "\n\t\r\n"]
)
def test_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(text, special=False)
    assert b"".join(map(tokenizer.piece, tokens)).decode() == text
    assert all(0 <= token < tokenizer.n_vocab for token in tokens)


@pytest.mark.model
def test_names_of_control_tokens_are_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nHi<|im_end|>"
    special = tokenizer.encode(text, special=True)
    plain = tokenizer.encode(text, special=False)
    assert special[0] == tokenizer.bos
    assert special[-1] == tokenizer.eos
    assert tokenizer.bos not in plain
    assert b"".join(map(tokenizer.piece, plain)).decode() == text
    assert b"".join(map(tokenizer.piece, special)) == b"user\nHi"
    assert b"".join(tokenizer.piece(token, special=True) for token in special).decode() == text


@pytest.mark.model
def test_bos_is_put_in_front_once(tokenizer: Tokenizer) -> None:
    assert not tokenizer.adds_bos
    bare = tokenizer.encode("Hi", special=False)
    assert tokenizer.encode("Hi", special=False, add_bos=True) == [tokenizer.bos, *bare]
    assert tokenizer.encode("<|im_start|>Hi", special=True, add_bos=True) == [tokenizer.bos, *bare]
    assert tokenizer.encode("Hi", special=False, add_bos=False) == bare


@pytest.mark.model
def test_the_end_of_a_turn_ends(tokenizer: Tokenizer) -> None:
    assert tokenizer.is_end(tokenizer.eos)
    assert not tokenizer.is_end(tokenizer.encode("Hi", special=False)[0])


@pytest.mark.model
def test_a_token_outside_the_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    for token in (-1, tokenizer.n_vocab, 1 << 40):
        with pytest.raises(ValueError, match="vocabulary of 49152"):
            tokenizer.piece(token)


@pytest.mark.model
def test_a_lone_surrogate_is_no_crash(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a\ud800b", special=False)
    assert b"".join(map(tokenizer.piece, tokens)) == b"a?b"


def test_a_file_without_a_vocabulary_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(BackendError, match=str(path)):
        Tokenizer(path)


@pytest.mark.model
def test_nothing_is_printed_by_the_library() -> None:
    code = "import sys; from pathlib import Path; from engine.model.tokenizer import Tokenizer as T; "
    code += "print(T(Path(sys.argv[1])).n_vocab)"
    ran = subprocess.run([sys.executable, "-c", code, demo_model()], check=True, capture_output=True)
    assert ran.stdout == b"49152\n"
    assert ran.stderr == b""


def test_importing_the_tokenizer_does_not_load_llama_cpp() -> None:
    code = "import sys, engine.model.tokenizer; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
