"""The stage process: load one slice, listen, serve until told to stop.

Started by hand (`skippy-engine stage`, `skippy-tui --engine-only`) it prints one line when it is ready.
Started by an engine it reads its settings from one JSON line on standard input, answers in JSON lines, and
ends when that pipe closes: so it never outlives its parent, not even after kill -9.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

import engine.compute  # noqa: F401 - before NumPy
from engine.errors import SkippyError, UsageError

if TYPE_CHECKING:
    from engine.protocol.messages import StageInfo
    from engine.stage.worker import StageWorker

log = logging.getLogger("skippy.stage")

LOADING_BEAT = 1.0  # seconds

_answering = threading.Lock()

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class StageSettings:
    """What a stage process needs to know."""

    model: str  # demo, a GGUF, the folder of a package, or a slice file made earlier
    first: int
    end: int  # -1: through the last layer
    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    insecure: bool = False
    tls_cert: str = ""  # PEM files; with them it listens on wss://
    tls_key: str = ""
    tls_ca: str = ""  # whom to trust when the next stage is at wss://; empty: the system's certificates
    threads: int = 0  # 0: all cores
    exact: bool = False
    gpu_layers: int = 0
    gpu_device: int = -1
    context: int = 4096
    sequences: int = 1
    batch_rows: int = 128
    slice_cache_gib: float = 0.0  # to which to prune the cache once it runs; 0: not at all


def parse_layers(text: str) -> tuple[int, int]:
    """`A:B` as first and end layer; an empty B means through the last layer (-1)."""
    first, separator, end = text.partition(":")
    try:
        if not separator:
            raise ValueError
        span = int(first or 0), int(end) if end else -1
    except ValueError:
        raise UsageError(f"--layers {text!r} is no range", hint="write A:B, for instance 15:30") from None
    if span[0] < 0 or (span[1] != -1 and span[1] <= span[0]):
        raise UsageError(f"--layers {text} holds no layer", hint="write A:B with 0 <= A < B")
    return span


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, with the host in brackets if it is an IPv6 address."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"--listen {text!r} is no address", hint="write HOST:PORT, for instance 127.0.0.1:9555"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def load_worker(settings: StageSettings, progress: Progress | None = None) -> StageWorker:
    """Open (or make) the slice and start its compute thread.

    llama.cpp is imported here and not before, so that a wrong call fails in milliseconds.
    """
    from engine.compute.bindings import check_bindings
    from engine.compute.embedding import EmbeddingTable
    from engine.compute.options import ComputeOptions
    from engine.compute.stage import Stage
    from engine.model.packages.source import open_stage
    from engine.stage.worker import StageWorker

    check_bindings()
    options = ComputeOptions(
        context=settings.context,
        sequences=settings.sequences,
        threads=settings.threads or os.cpu_count() or 1,
        exact=settings.exact,
        gpu_layers=settings.gpu_layers,
        gpu_device=settings.gpu_device,
        batch_rows=settings.batch_rows,
    )
    slice_, model = open_stage(settings.model, settings.first, settings.end, progress)
    embeddings = EmbeddingTable(model, slice_.rules.input_scale) if model is not None else None
    return StageWorker(Stage(slice_, options, embeddings=embeddings))


async def serve(
    settings: StageSettings, worker: StageWorker, ready: Callable[[str, StageInfo], None]
) -> None:
    """Serve until SIGTERM or SIGINT; `ready(url, info)` is called once it listens."""
    from engine.stage.service import StageService
    from engine.transport.tls import client_context, server_context

    service = StageService(worker, client_context(settings.tls_ca) if settings.tls_ca else None)
    url = await service.listen(
        settings.host,
        settings.port,
        token=settings.token,
        insecure=settings.insecure,
        tls=server_context(settings.tls_cert, settings.tls_key) if settings.tls_cert else None,
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    ready(url, service.info)
    try:
        await stopped.wait()
    finally:
        await service.close()


def run(settings: StageSettings) -> None:
    """`skippy-engine stage`: serve one slice in the foreground. Raises SkippyError."""
    from engine.model.pruning import GIB, keep_within
    from engine.model.slices import slices_folder

    worker = load_worker(settings)
    keep_within(slices_folder(), int(settings.slice_cache_gib * GIB))

    def ready(url: str, info: StageInfo) -> None:
        layers = f"{info.first_layer}:{info.end_layer}"
        print(f"ready {url} layers {layers} model {info.model_name}", flush=True)

    try:
        asyncio.run(serve(settings, worker, ready))
    finally:
        worker.close()


def end_with_parent() -> None:
    """End this process, whatever it is doing, when standard input closes."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def answer(message: dict[str, Any]) -> None:
    """One JSON line to the parent, from any thread."""
    with _answering:
        sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
        sys.stdout.buffer.flush()


def read_settings_line() -> dict[str, Any]:
    """The JSON line the parent wrote; read unbuffered, so that the pipe can be watched afterwards."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(0)
        line += byte
    settings: dict[str, Any] = orjson.loads(line)
    return settings


def say_that_it_loads(loaded: threading.Event) -> None:
    """Give a sign of life every second until `loaded`, so that the parent can tell slow from hung."""

    def beat() -> None:
        while not loaded.wait(LOADING_BEAT):
            answer({"loading": True})

    threading.Thread(target=beat, name="loading", daemon=True).start()


def spawned_main() -> int:
    """Entry of a stage that an engine started; errors go back to it as a line, not to the terminal."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    settings = StageSettings(**read_settings_line())
    end_with_parent()
    loaded = threading.Event()
    say_that_it_loads(loaded)

    def progress(done: int, total: int) -> None:
        answer({"progress": [done, total]})

    def ready(url: str, info: StageInfo) -> None:
        loaded.set()
        answer({"ready": url, "pid": os.getpid()})

    try:
        worker = load_worker(settings, progress)
        asyncio.run(serve(settings, worker, ready))
        worker.close()
    except SkippyError as error:
        answer({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(spawned_main())
