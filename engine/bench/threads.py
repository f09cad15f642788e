"""Work of llama.cpp on a thread: whoever gives it up still waits until the thread has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def on_thread(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """The result of `work`. When cancelled, call `stop`, which may shorten it, and end when it has ended.

    A thread cannot be cancelled: what it computes with must not be closed before, or llama.cpp reads freed
    memory.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop()
        while not running.done():
            with suppress(asyncio.CancelledError):  # of somebody who is in even more of a hurry
                await asyncio.wait({running})
        running.exception()  # nobody is left who would want it
        raise
