"""Slots: a lane, a session and what its caches hold, kept from one turn of a chat to the next.

Requests get them in the order in which they came. Those that must wait do so for a limited time, and no more
than `MAX_WAITING` at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.coordinator.chain import Chain
from engine.errors import Busy
from engine.transport.timeouts import TIMEOUTS

MAX_WAITING = 64
"""Requests that may wait for a slot at the same time."""


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


class SlotPool:
    """Lends slots. One that is given back goes to whoever has waited longest, not to whoever comes now."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self._waiting: deque[asyncio.Future[Slot]] = deque()

    async def checkout(self, chat: str) -> Slot:
        """A slot, waiting for one at most as long as admission allows. Raises Busy."""
        slot = choose_slot(self.slots, chat) or await self._wait()
        take(slot, chat)
        return slot

    def give_back(self, slot: Slot) -> None:
        """The answer that had the slot has ended."""
        slot.busy = False
        slot.last_used = time.monotonic()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                slot.busy = True  # on its way to the waiter
                waiter.set_result(slot)
                return

    async def _wait(self) -> Slot:
        if len(self._waiting) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} requests wait already", hint="try again in a moment")
        waiter: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(TIMEOUTS.admission):
                return await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled():
                self.give_back(waiter.result())  # it came at the same moment
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            if isinstance(error, asyncio.CancelledError):
                raise
            count = len(self.slots)
            raise Busy(f"all {count} sequences are answering", hint="try again in a moment") from None
