"""A client of no engine: it gives out what a script says. Screenshots and tests use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.client.requests import GenerateRequest
from engine.errors import SkippyError
from engine.events import Event
from engine.protocol.messages import LinkEmulation
from skippy_tui.demo import answer, finished, ready

Script = Callable[[GenerateRequest], list[Event]]
Hold = Callable[[Sequence[Event]], int]


class ScriptedClient:
    """A client of no engine: gives out `startup`, and for each request what `script` says.

    With `hold`, an answer stops after as many of its events as that returns, until it is cancelled or `go_on`
    is called.
    """

    def __init__(
        self, startup: Sequence[Event] | None = None, script: Script = answer, hold: Hold | None = None
    ) -> None:
        self.sent: list[Mapping[str, Any]] = []  # every request, for tests to look at
        self.values: dict[str, Any] = {}  # settings that were changed
        self.emulation = LinkEmulation()  # that was asked for while it ran
        self.opened = 0
        self.startup = ready() if startup is None else startup
        self._script = script
        self._hold = hold
        self._held: list[Event] = []
        self._played: list[Event] = []
        self._events: asyncio.Queue[Event | SkippyError] = asyncio.Queue()

    async def open(self) -> None:
        self.opened += 1
        self._events = asyncio.Queue()
        self.put(*self.startup)

    async def close(self) -> None:
        self._held = []

    async def next_event(self) -> Event:
        event = await self._events.get()
        if isinstance(event, SkippyError):
            raise event
        return event

    async def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)
        if message["op"] != "generate":
            return
        events = self._script(GenerateRequest.from_dict(message))
        hold = len(events) if self._hold is None else self._hold(events)
        self._played, self._held = events[:hold], events[hold:]
        self.put(*self._played)

    async def cancel(self, request: str) -> None:
        self.sent.append({"op": "cancel", "request": request})
        self._held = []
        self.put(finished(request, self._played, "cancelled"))

    async def set_values(self, values: Mapping[str, Any]) -> None:
        self.values |= values

    async def set_emulation(self, emulation: LinkEmulation) -> None:
        self.emulation = emulation

    @property
    def is_quiet(self) -> bool:
        """Whether everything that was said has been read."""
        return self._events.empty()

    @property
    def is_done(self) -> bool:
        """Whether no part of an answer is held back."""
        return not self._held

    def put(self, *events: Event) -> None:
        """Let the engine say something."""
        for event in events:
            self._events.put_nowait(event)

    def go_on(self, count: int | None = None) -> None:
        """Play what is held back, or the next `count` events of it."""
        count = len(self._held) if count is None else count
        playing, self._held = self._held[:count], self._held[count:]
        self._played += playing
        self.put(*playing)

    def die(self, error: SkippyError) -> None:
        """Let the engine be gone."""
        self._events.put_nowait(error)
