"""Timing a model for an engine, in a process of its own: whatever it makes llama.cpp do, the node lives on.

The child reads one JSON line (threads, GPU layers, bytes of the header) and the header from standard input,
and answers with one JSON line. Its standard input stays open for as long as the answer is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path

import orjson

from engine.errors import SkippyError, reason_of, reported_error
from engine.model.paths import log_dir
from engine.protocol.node_messages import Measure, Measured
from engine.stage.child import kill_process, start_module
from engine.stage.node_options import NodeOptions
from engine.stage.process import answer, end_with_parent, read_settings_line
from engine.transport.timeouts import TIMEOUTS


async def measure(question: Measure, options: NodeOptions) -> Measured:
    """Run the timing. Raises what it reports, or SkippyError if it crashes or takes too long."""
    threads = options.threads_for(question.threads)
    settings = {"threads": threads, "gpu_layers": options.gpu_layers, "bytes": len(question.header)}
    process = await start_module("engine.stage.node_measure", _log_path())
    try:
        async with asyncio.timeout(TIMEOUTS.node_measure):
            costs = await _ask(process, orjson.dumps(settings) + b"\n" + question.header)
    except TimeoutError:
        raise SkippyError(f"timing took longer than {TIMEOUTS.node_measure:g} s", code="measure") from None
    finally:
        await kill_process(process)
    return Measured(threads=threads, costs=costs)


def _log_path() -> Path:
    return log_dir() / "measure.log"


async def _ask(process: Process, data: bytes) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data)
    with contextlib.suppress(ConnectionError):  # it ended at once: reading says so
        await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise SkippyError("timing the model crashed", hint=f"see {_log_path()}", code="measure")
    reply = orjson.loads(line)
    if "error" in reply:
        fault = reply["error"]
        raise reported_error(fault["message"], hint=fault["hint"], code=fault["code"])
    return orjson.dumps(reply["costs"]).decode()


def main() -> int:
    """Entry of the child."""
    settings = read_settings_line()
    header = _read_exactly(settings["bytes"])
    end_with_parent()
    from engine.planning.measure import measure_costs
    from engine.planning.profiles import to_plain

    try:
        costs = measure_costs(header, settings["threads"], gpu_layers=settings["gpu_layers"])
    except (SkippyError, OSError) as error:
        fault = error if isinstance(error, SkippyError) else SkippyError(reason_of(error), code="measure")
        answer({"error": {"code": fault.code, "message": fault.message, "hint": fault.hint}})
        return 1
    answer({"costs": to_plain(costs)})
    return 0


def _read_exactly(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            raise SystemExit(0)
        data += piece
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main())
