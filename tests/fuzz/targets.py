"""What is fuzzed: functions of bytes that may refuse their input in one way only.

Used by the tests, with hypothesis and the corpus, and by `python -m tests.fuzz.run_atheris TARGET`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from engine.errors import ModelFileError, ProtocolError, SkippyError
from engine.model.header import check_header
from engine.protocol.checksum import seal, unseal
from engine.protocol.codec import decode, encode
from engine.protocol.connection import Connection, State
from engine.protocol.handshake import NODE_ROLES
from engine.protocol.limits import NO_ROWS
from engine.protocol.messages import Welcome
from tests.protocol.samples import HELLO, LIMITS, N_EMBD, WELCOME

CORPUS = Path(__file__).with_name("corpus")


def fuzz_codec(data: bytes) -> None:
    """A frame is refused with a code, or is a message that can be written again and stays the same."""
    for limits, n_embd in ((LIMITS, N_EMBD), (NO_ROWS, 0)):
        try:
            message = decode(data, n_embd=n_embd, limits=limits)
        except ProtocolError as error:
            _has_code(error)
            continue
        again = encode(message)
        assert encode(decode(again, n_embd=n_embd, limits=limits)) == again


def fuzz_connection(data: bytes) -> None:
    """Frames (a length of two bytes before each) come to a stage: at the first that is refused, with a code,
    the connection is over."""
    connection = Connection.acceptor()
    for number, frame in enumerate(split_frames(data)):
        try:
            connection.receive(frame)
        except ProtocolError as error:
            _has_code(error)
            assert connection.state is State.FAILED
            connection.refuse(error)
            return
        if number == 0:
            assert connection.hello is not None
            try:
                connection.accept(Welcome(()) if connection.hello.role in NODE_ROLES else WELCOME)
            except ProtocolError as error:
                _has_code(error)
                return


def fuzz_checksum(data: bytes) -> None:
    """What is sealed comes back; anything else is refused, or of another version of the protocol."""
    assert unseal(seal(data)) == data or not data or data[0] != seal(encode(HELLO))[0]
    try:
        unseal(data)
    except ProtocolError as error:
        _has_code(error, "checksum")


def fuzz_header(data: bytes) -> None:
    """A file is refused with the name of the field, or its header holds nothing that the file does not."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        try:
            header = check_header(Path(file.name))
        except ModelFileError as error:
            _has_code(error, "model-file")
            return
        for tensor in header.tensors:
            assert tensor.offset + tensor.n_bytes <= len(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": fuzz_codec,
    "connection": fuzz_connection,
    "checksum": fuzz_checksum,
    "header": fuzz_header,
}


def _has_code(error: SkippyError, code: str = "") -> None:
    assert error.code == (code or error.code) != ""
    assert str(error)


def split_frames(data: bytes) -> list[bytes]:
    """The frames of an input of `fuzz_connection`."""
    frames: list[bytes] = []
    while len(data) >= 2:
        length = int.from_bytes(data[:2], "little")
        frames.append(data[2 : 2 + length])
        data = data[2 + length :]
    return frames


def join_frames(frames: list[bytes]) -> bytes:
    """The other way round."""
    return b"".join(len(frame).to_bytes(2, "little") + frame for frame in frames)


def corpus(target: str) -> list[bytes]:
    """The kept inputs of a target: valid ones to begin with, and whatever once was a fault."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]
