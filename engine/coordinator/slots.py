"""Slots: a lane, a session and what its caches hold, kept from one turn of a chat to the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.coordinator.chain import Chain


@dataclass(slots=True, eq=False)
class Slot:
    """`cached` are the tokens whose positions every stage's cache holds."""

    number: int
    chain: Chain | None = None
    session: int = 0
    chat: str = ""
    cached: list[int] = field(default_factory=list)
    next_window: int = 0  # numbers of a session are never used twice
    next_epoch: int = 0
    rows_not_drafted: int = 0  # rows that the NextN head has not been fed yet
    busy: bool = False
    last_used: float = 0.0
    repair: asyncio.Task[Chain] | None = None  # the last one, or the one that runs

    def reusable(self, prompt: Sequence[int]) -> int:
        """How many tokens at the beginning of a prompt are in the caches already.

        At most all but the last: that one is the first window's row.
        """
        limit = min(len(self.cached), len(prompt) - 1)
        for index in range(limit):
            if self.cached[index] != prompt[index]:
                return index
        return limit


def choose_slot(slots: Sequence[Slot], chat: str) -> Slot | None:
    """The idle slot of this chat, else the one unused for longest; None when all are busy."""
    idle = [slot for slot in slots if not slot.busy]
    for slot in idle:
        if chat and slot.chat == chat:
            return slot
    return min(idle, key=lambda slot: slot.last_used, default=None)


def take(slot: Slot, chat: str) -> None:
    """Mark a slot as used by a chat.

    Caches are reused within a chat only: rows computed for another one come from batches of other sizes, and
    an answer must not depend on what was asked before it.
    """
    slot.busy = True
    if not chat or slot.chat != chat:
        slot.cached = []
        slot.rows_not_drafted = 0
    slot.chat = chat
    slot.last_used = time.monotonic()
