"""What a slot's caches hold decides what is prefilled again."""

from __future__ import annotations

from engine.coordinator.slots import Slot, choose_slot, take


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
