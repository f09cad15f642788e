"""Ctrl+C: the first one stops what is being done, the second one ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from engine.cli.errors import Interrupted
from engine.errors import EXIT_INTERRUPTED

T = TypeVar("T")


class Interrupts:
    """While entered, Ctrl+C no longer raises KeyboardInterrupt. Must be entered on the running loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._asked.clear()
        self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    @property
    def asked(self) -> bool:
        """Whether Ctrl+C was pressed since this was entered."""
        return self._asked.is_set()

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; Ctrl+C cancels it and raises Interrupted."""
        task = asyncio.create_task(work)
        if not await self.done_before(task):
            task.cancel()
            await asyncio.wait({task})
            raise Interrupted
        return task.result()

    async def done_before(self, task: asyncio.Task[Any]) -> bool:
        """Wait for the task or for Ctrl+C; True if the task is done."""
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        return task.done()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            # The engine ends by itself when its standard input closes with us.
            sys.stdout.flush()
            os._exit(EXIT_INTERRUPTED)
        self._loop.call_soon_threadsafe(self._asked.set)
