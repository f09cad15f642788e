"""What a slot's caches hold decides what is prefilled again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.coordinator.slots import MAX_WAITING, Slot, SlotPool, choose_slot, take
from engine.errors import Busy
from engine.timeouts import TIMEOUTS


def test_only_the_common_prefix_is_reused() -> None:
    slot = Slot(number=0, cached=[1, 2, 3, 4])
    assert slot.reusable([1, 2, 9, 4, 5]) == 2


def test_the_last_prompt_token_is_never_reused() -> None:
    slot = Slot(number=0, cached=[1, 2, 3, 4])
    assert slot.reusable([1, 2, 3]) == 2


def test_an_empty_cache_reuses_nothing() -> None:
    assert Slot(number=0).reusable([1]) == 0


def test_a_chat_comes_back_to_its_slot() -> None:
    slots = [Slot(number=0), Slot(number=1)]
    take(slots[1], "chat")
    slots[1].busy = False
    assert choose_slot(slots, "chat") is slots[1]


def test_a_new_chat_takes_the_slot_unused_for_longest() -> None:
    slots = [Slot(number=0, last_used=2.0), Slot(number=1, last_used=1.0)]
    assert choose_slot(slots, "new") is slots[1]


def test_busy_slots_are_not_lent() -> None:
    slots = [Slot(number=0, busy=True)]
    assert choose_slot(slots, "new") is None


def test_another_chat_reuses_nothing() -> None:
    slot = Slot(number=0, chat="one", cached=[1, 2, 3])
    take(slot, "one")
    assert slot.cached == [1, 2, 3]
    take(slot, "two")
    assert slot.cached == []


def test_a_request_without_a_chat_reuses_nothing() -> None:
    slot = Slot(number=0, chat="", cached=[1, 2, 3])
    take(slot, "")
    assert slot.cached == []


async def waiting(pool: SlotPool, name: str, got: list[str]) -> Slot:
    slot = await pool.checkout("")
    got.append(name)
    return slot


async def started(count: int) -> None:
    """Let so many tasks get to where they wait."""
    for _ in range(count + 2):
        await asyncio.sleep(0)


async def test_requests_are_served_in_the_order_of_their_coming() -> None:
    pool = SlotPool([Slot(number=0)])
    slot, got = await pool.checkout(""), list[str]()
    tasks = [asyncio.create_task(waiting(pool, name, got)) for name in "abc"]
    await started(3)
    for _ in range(3):
        pool.give_back(slot)
        late = asyncio.create_task(waiting(pool, "late", got))  # comes when a slot is free, but others wait
        await started(2)
        late.cancel()
    assert got == ["a", "b", "c"]
    assert all(task.done() for task in tasks)


async def test_one_that_gave_up_is_passed_over() -> None:
    pool = SlotPool([Slot(number=0)])
    slot, got = await pool.checkout(""), list[str]()
    tasks = [asyncio.create_task(waiting(pool, name, got)) for name in "ab"]
    await started(2)
    tasks[0].cancel()
    await started(1)
    pool.give_back(slot)
    assert await tasks[1] is slot
    assert got == ["b"]


async def test_a_slot_that_comes_too_late_goes_to_the_next() -> None:
    pool = SlotPool([Slot(number=0)])
    slot, got = await pool.checkout(""), list[str]()
    tasks = [asyncio.create_task(waiting(pool, name, got)) for name in "ab"]
    await started(2)
    pool.give_back(slot)  # on its way to a ..
    tasks[0].cancel()  # .. which does not want it any more
    assert await tasks[1] is slot


async def test_who_has_waited_long_enough_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.coordinator.slots.TIMEOUTS", replace(TIMEOUTS, admission=0.01))
    pool = SlotPool([Slot(number=0)])
    slot = await pool.checkout("")
    with pytest.raises(Busy, match="all 1 sequences are answering"):
        await pool.checkout("")
    pool.give_back(slot)
    assert await pool.checkout("") is slot


async def test_no_more_than_so_many_wait() -> None:
    pool = SlotPool([Slot(number=0)])
    await pool.checkout("")
    tasks = [asyncio.create_task(pool.checkout("")) for _ in range(MAX_WAITING)]
    await started(MAX_WAITING)
    with pytest.raises(Busy, match="64 requests wait already"):
        await pool.checkout("")
    for task in tasks:
        task.cancel()
