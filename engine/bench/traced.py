"""Engines and stages that note when each window passes which point, for the budget of a token.

`python -m engine.bench.traced engine|stage FILE [ARGUMENTS]` runs the ordinary program with a few functions
wrapped. A mark is the point, the thread, the moment on the system's monotonic clock, which all processes
share, and the processor time of the thread. Marks go to FILE; the last few may be missing there.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import engine.compute  # noqa: F401 - before NumPy


class Point(IntEnum):
    """What a window passes, in the order of a token's way."""

    ARRIVED = 0  # bytes from the socket, on the event loop
    RECEIVED = 1  # the coordinator has the reply as a message
    DECIDING = 2  # acceptance and the plan of the next window
    DECIDED = 3
    SUBMITTED = 4  # handed to the compute thread
    TAKEN = 5  # .. which has it
    LOOKING_UP = 6  # rows of the token embedding
    LOOKED_UP = 7
    COMPUTING = 8  # llama_decode
    COMPUTED = 9
    SAMPLING = 10
    SAMPLED = 11
    POSTED = 12  # handed to a link
    WRITING = 13  # the frame is encoded and goes to the socket


# (module, class and method, at its beginning, at its end)
_WRAPPED: tuple[tuple[str, str, Point, Point | None], ...] = (
    ("engine.transport.websocket", "WebSocket.buffer_updated", Point.ARRIVED, None),
    ("engine.coordinator.chain", "Chain._receive", Point.RECEIVED, None),
    ("engine.speculation.loop", "DecodeLoop.on_reply", Point.DECIDING, Point.DECIDED),
    ("engine.stage.worker", "StageWorker.submit", Point.SUBMITTED, None),
    ("engine.stage.worker", "StageWorker._handle", Point.TAKEN, None),
    ("engine.compute.embedding", "EmbeddingTable.rows", Point.LOOKING_UP, Point.LOOKED_UP),
    ("engine.compute.tail", "Tail._predict", Point.SAMPLING, Point.SAMPLED),
    ("engine.transport.link", "Link.post", Point.POSTED, None),
    ("engine.transport.websocket", "WebSocket.send", Point.WRITING, None),
)

_RECORD = struct.Struct("<IIqq")
_KEPT = 256  # marks between two writes


class Mark(NamedTuple):
    """Times are nanoseconds."""

    point: Point
    thread: int
    at: int
    cpu: int


class Marks:
    """Marks of this process on their way to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._records: list[bytes] = []

    def add(self, point: Point) -> None:
        thread = threading.get_ident() >> 8 & 0xFFFFFFFF
        record = _RECORD.pack(point, thread, time.perf_counter_ns(), time.thread_time_ns())
        with self._lock:
            self._records.append(record)
            if len(self._records) < _KEPT:
                return
            records, self._records = self._records, []
        os.write(self._file, b"".join(records))


def read_marks(path: Path) -> list[Mark]:
    """The marks of one process in the order of their moments."""
    data = path.read_bytes()
    whole = len(data) // _RECORD.size * _RECORD.size
    marks = [
        Mark(Point(point), thread, at, cpu) for point, thread, at, cpu in _RECORD.iter_unpack(data[:whole])
    ]
    return sorted(marks, key=lambda mark: mark.at)


def install(marks: Marks) -> None:
    """Wrap every point of this process. Raises AttributeError if one has another name by now."""
    for module, name, begin, end in _WRAPPED:
        owner, method = name.split(".")
        kind = getattr(importlib.import_module(module), owner)
        setattr(kind, method, _marking(getattr(kind, method), marks, begin, end))
    from engine.compute.bindings import bindings

    llama = bindings()
    llama.llama_decode = _marking(llama.llama_decode, marks, Point.COMPUTING, Point.COMPUTED)


def _marking(
    function: Callable[..., Any], marks: Marks, begin: Point, end: Point | None
) -> Callable[..., Any]:
    def marking(*arguments: Any, **options: Any) -> Any:
        marks.add(begin)
        result = function(*arguments, **options)
        if end is not None:
            marks.add(end)
        return result

    return marking


def main(argv: list[str]) -> int:
    """Run an engine or a stage with marks. Both end when their standard input closes."""
    what, path, *arguments = argv
    install(Marks(Path(path)))
    if what == "engine":
        from engine.coordinator.process import main as run_engine

        return run_engine()
    from engine.cli.main import main as run_tool
    from engine.stage.process import end_with_parent

    end_with_parent()
    return run_tool(["stage", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
