"""Work on a thread that is given up: nothing is closed under it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from engine.bench.threads import on_thread


async def test_whoever_gives_up_waits_until_the_thread_has_ended() -> None:
    begun, stopped, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        stopped.wait()
        ended.set()

    task = asyncio.create_task(on_thread(work, stop=stopped.set))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_giving_up_twice_ends_no_earlier() -> None:
    begun, finish, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        finish.wait()
        ended.set()
        raise ValueError("which nobody waits for")

    task = asyncio.create_task(on_thread(work))
    await begun.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done()
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_the_result_and_the_error_of_the_work_are_its_own() -> None:
    assert await on_thread(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await on_thread(lambda: 1 // 0)
