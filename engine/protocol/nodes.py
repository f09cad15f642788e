"""The order of questions and answers on a node link, and what a question may say. Pure, like `sessions`."""

from __future__ import annotations

import re
from typing import Any

from engine.errors import ProtocolError
from engine.protocol.limits import (
    MAX_BATCH_ROWS,
    MAX_HELD,
    MAX_LAYERS,
    MAX_NODE_CONTEXT,
    MAX_NODE_SEQUENCES,
    MAX_SLICE_BYTES,
    MAX_TEXT,
    MAX_THREADS,
)
from engine.protocol.messages import ErrorMessage, Message
from engine.protocol.node_messages import (
    Assign,
    Assigned,
    AssignProgress,
    Describe,
    Measure,
    Measured,
    NodeInfo,
    PeerProbed,
    ProbePeer,
    SliceChunk,
    SliceWanted,
)

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_ANSWERS: dict[type[Message], type[Message]] = {
    Describe: NodeInfo,
    Measure: Measured,
    ProbePeer: PeerProbed,
    Assign: Assigned,
}


class NodeExchange:
    """Both ends of a node link account for every message here.

    One question at a time; it ends with its answer or with an error. While an `Assign` is open the node may
    report progress, and ask once for the slice; then chunks come, each where the one before it ended.
    """

    def __init__(self) -> None:
        self._question: Message | None = None
        self._next_chunk: int | None = None  # where it must begin; None: no slice was asked for

    def asked(self, message: Message) -> None:
        """A message of the coordinator. ProtocolError `role`, `position` or `fields`."""
        if isinstance(message, SliceChunk):
            self._chunk(message)
        elif type(message) in _ANSWERS:
            if self._question is not None:
                raise ProtocolError(
                    f"{_name(message)} before {_name(self._question)} is answered", code="role"
                )
            check_question(message)
            self._question = message

    def answered(self, message: Message) -> None:
        """A message of the node. ProtocolError `role` or `fields`."""
        question = self._question
        if isinstance(message, ErrorMessage):
            self._end()
        elif isinstance(message, (AssignProgress, SliceWanted, Assigned)):
            if not isinstance(question, Assign):
                raise ProtocolError(f"{_name(message)}, but nothing was assigned", code="role")
            self._of_assignment(question, message)
        elif type(message) in _ANSWERS.values():
            if question is None or type(message) is not _ANSWERS[type(question)]:
                asked = "nothing" if question is None else _name(question)
                raise ProtocolError(f"{_name(message)}, but {asked} was asked", code="role")
            if isinstance(message, NodeInfo):
                _check_info(message)
            self._end()

    def _of_assignment(self, assign: Assign, message: AssignProgress | SliceWanted | Assigned) -> None:
        if isinstance(message, SliceWanted):
            if not assign.offered or self._next_chunk is not None:
                raise ProtocolError("a slice was asked for that is not on offer", code="role")
            _whole("offset", message.offset, 0, assign.size)
            self._next_chunk = message.offset
        elif isinstance(message, Assigned):
            _whole("port", message.port, 1, 65_535)
            self._end()

    def _chunk(self, chunk: SliceChunk) -> None:
        if self._next_chunk is None or not isinstance(self._question, Assign):
            raise ProtocolError("a piece of a slice that nobody asked for", code="role")
        end = chunk.offset + len(chunk.data)
        if chunk.offset != self._next_chunk or not chunk.data or end > self._question.size:
            raise ProtocolError(
                f"bytes {chunk.offset} to {end} of a slice of {self._question.size}, "
                f"and the next ones are those from {self._next_chunk}",
                code="position",
            )
        self._next_chunk = end

    def _end(self) -> None:
        self._question = self._next_chunk = None


def check_question(question: Message) -> None:
    """ProtocolError `fields` for a question that says something out of range."""
    if isinstance(question, Assign):
        _check_assign(question)
    elif isinstance(question, Measure):
        _whole("threads", question.threads, 0, MAX_THREADS)
    elif isinstance(question, ProbePeer):
        _text("url", question.url)
        _text("token", question.token)
        for name, value in (("rtt", question.emulate_rtt_ms), ("mbps", question.emulate_mbps)):
            if not 0 <= value <= 1e6:
                raise _out_of_range(f"the emulated {name}", value, 0, 1_000_000)


def _check_assign(assign: Assign) -> None:
    if not _FINGERPRINT.fullmatch(assign.fingerprint):
        raise ProtocolError("the fingerprint of a model is 32 digits of hex", code="fields")
    if not _SHA256.fullmatch(assign.sha256):
        raise ProtocolError("the hash of a slice is 64 digits of hex", code="fields")
    _text("model_name", assign.model_name)
    _whole("first", assign.first, 0, MAX_LAYERS - 1)
    _whole("end", assign.end, assign.first + 1, MAX_LAYERS)
    _whole("size", assign.size, 1, MAX_SLICE_BYTES)
    _whole("stage_index", assign.stage_index, 0, MAX_LAYERS)
    _whole("threads", assign.threads, 0, MAX_THREADS)
    _whole("context", assign.context, 1, MAX_NODE_CONTEXT)
    _whole("sequences", assign.sequences, 1, MAX_NODE_SEQUENCES)
    _whole("batch_rows", assign.batch_rows, 1, MAX_BATCH_ROWS)


def _check_info(info: NodeInfo) -> None:
    _text("host", info.host)
    _whole("cores", info.cores, 1, MAX_THREADS)
    if len(info.slices) > MAX_HELD or len(info.models) > MAX_HELD:
        raise ProtocolError(f"a node names more than {MAX_HELD} slices or models", code="fields")


def _whole(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _out_of_range(name, value, least, most)


def _text(name: str, value: str) -> None:
    if len(value) > MAX_TEXT:
        raise ProtocolError(
            f"{name} has {len(value)} characters, at most {MAX_TEXT} are allowed", code="fields"
        )


def _out_of_range(name: str, value: float, least: int, most: int) -> ProtocolError:
    return ProtocolError(f"{name} is {value:g}, it must be from {least} to {most}", code="fields")


def _name(message: Any) -> str:
    return type(message).__name__
