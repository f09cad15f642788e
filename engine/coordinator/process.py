"""The engine process, started by a front end.

It reads one JSON line (plan and token) from standard input, answers with one line that says where its local
link listens, and loads the model while the front end already shows its progress. When standard input closes,
because the front end ended in whatever way, it ends too, and its stages with it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from typing import Any

import engine.compute  # noqa: F401 - before NumPy
from engine.config.plain import plan_from_dict
from engine.coordinator.engine import Engine
from engine.coordinator.server import LinkServer
from engine.errors import SkippyError
from engine.stage.process import answer, end_with_parent, read_settings_line

log = logging.getLogger("skippy.engine")


async def run(settings: dict[str, Any]) -> None:
    """Serve until told to stop."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = LinkServer(settings["token"], on_shutdown=stopped.set)
    engine = Engine(plan_from_dict(settings["plan"]), server.emit)
    answer({"url": await server.start(engine, port=settings.get("port", 0))})
    starting = asyncio.create_task(_start(engine))
    try:
        await stopped.wait()
    finally:
        starting.cancel()
        await engine.close()
        await server.close()


async def _start(engine: Engine) -> None:
    """Load; a failure is an event, so that the front end can show it and stay usable."""
    try:
        await engine.start()
    except SkippyError as error:
        engine.fail(error)
    except Exception as error:
        log.exception("the engine did not start")
        engine.fail(SkippyError(f"{type(error).__name__}: {error}", code="internal"))
    # What is loaded stays; collecting it again and again would only interrupt the decode loop.
    gc.collect()
    gc.freeze()


def main() -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    settings = read_settings_line()
    end_with_parent()
    try:
        asyncio.run(run(settings))
    except SkippyError as error:
        answer({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
