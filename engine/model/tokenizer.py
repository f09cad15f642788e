"""Text to tokens and back, by llama.cpp's own tokenizer (a load of the vocabulary only)."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from types import TracebackType

from engine.errors import BackendError

_PIECE_BYTES = 64


class Tokenizer:
    """The vocabulary of a model whose header has been checked (`ModelFile.open`), by its first shard.

    Attributes:
        n_vocab: number of tokens; every id is below it.
        bos, eos: their ids, or -1 where the model has none.
        adds_bos: whether the model wants its texts to begin with `bos`.
    """

    def __init__(self, path: Path) -> None:
        import llama_cpp  # loading the library takes a while: only who tokenizes pays

        # llama-cpp-python prints llama.cpp's log on standard error unless its logger has a level.
        library_log = logging.getLogger("llama-cpp-python")
        if library_log.level == logging.NOTSET:
            library_log.setLevel(logging.CRITICAL)
        self._library = llama_cpp
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        parameters.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise BackendError(
                f"llama.cpp cannot read the vocabulary of {path}", hint="get the file again, or update Skippy"
            )
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
        self.bos = int(llama_cpp.llama_vocab_bos(self._vocab))
        self.eos = int(llama_cpp.llama_vocab_eos(self._vocab))
        self.adds_bos = self.bos >= 0 and bool(llama_cpp.llama_vocab_get_add_bos(self._vocab))

    def encode(self, text: str, *, special: bool, add_bos: bool | None = None) -> list[int]:
        """The tokens of `text`. With `special`, the names of control tokens in it become those tokens.

        `add_bos` puts `bos` in front unless it is there already; None does what the model wants.
        """
        data = text.encode("utf-8", "replace")
        tokens = self._tokenize(data, special, len(data) + 1)
        wanted = self.adds_bos if add_bos is None else add_bos
        if wanted and self.bos >= 0 and tokens[:1] != [self.bos]:
            tokens.insert(0, self.bos)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token, which need not be whole characters; control tokens only with `special`."""
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is not in a vocabulary of {self.n_vocab}")
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        length = self._library.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if length < 0:  # minus the length that is needed
            buffer = ctypes.create_string_buffer(-length)
            length = self._library.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:length]

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token (end of sequence, of turn, ...)."""
        return bool(self._library.llama_vocab_is_eog(self._vocab, token))

    def close(self) -> None:
        """Free the vocabulary; no other method may be called afterwards."""
        if self._model:
            self._library.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tokenize(self, data: bytes, special: bool, room: int) -> list[int]:
        buffer = (self._library.llama_token * room)()
        count = self._library.llama_tokenize(self._vocab, data, len(data), buffer, room, False, special)
        if count < 0:  # minus the number of tokens
            return self._tokenize(data, special, -count)
        return list(buffer[:count])
