"""Lanes are served in turn, and each of them in order."""

from __future__ import annotations

import threading

from engine.stage.turns import Turns


def taken(turns: Turns[str], count: int) -> list[str | None]:
    return [turns.take() for _ in range(count)]


def test_a_lane_alone_is_served_in_order() -> None:
    turns: Turns[str] = Turns()
    for job in "abc":
        turns.put(1, job)
    assert taken(turns, 3) == ["a", "b", "c"]


def test_one_row_waits_for_one_piece_of_a_long_prompt_only() -> None:
    turns: Turns[str] = Turns()
    for number in range(4):
        turns.put(1, f"prompt {number}")
    assert turns.take() == "prompt 0"
    turns.put(2, "row")
    assert taken(turns, 4) == ["prompt 1", "row", "prompt 2", "prompt 3"]


def test_three_lanes_take_turns() -> None:
    turns: Turns[str] = Turns()
    for lane, jobs in enumerate(("abc", "de", "f")):
        for job in jobs:
            turns.put(lane, job)
    assert taken(turns, 6) == ["a", "d", "f", "b", "e", "c"]


def test_it_counts_what_waits() -> None:
    turns: Turns[str] = Turns()
    turns.put(1, "a")
    turns.put(1, "b")
    turns.put(2, "c")
    assert len(turns) == 3
    turns.take()
    assert len(turns) == 2


def test_the_end_comes_before_whatever_waits() -> None:
    turns: Turns[str] = Turns()
    turns.put(1, "a")
    turns.put(1, "b")
    assert turns.take() == "a"
    turns.end()
    assert turns.take() is None
    assert turns.take() is None


def test_a_taker_that_waits_is_woken() -> None:
    turns: Turns[str] = Turns()
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(turns.take()))
    thread.start()
    turns.put(1, "a")
    thread.join(10)
    assert got == ["a"]
