"""One conversation of a command line with an engine: requests out, events to whoever listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from engine.cli.interrupts import Interrupts
from engine.client.client import EngineClient
from engine.client.requests import GenerateRequest
from engine.errors import EngineLost, reported_error
from engine.events import Event
from engine.reducer import apply
from engine.timeouts import TIMEOUTS
from engine.view import Request, ViewState

Listener = Callable[[Event, ViewState], None]


class Session:
    """A client, the state that its events add up to, and the listeners that are told of each."""

    def __init__(self, client: EngineClient, listeners: Sequence[Listener], interrupts: Interrupts) -> None:
        self.client = client
        self.state = ViewState()
        self._listeners = listeners
        self._interrupts = interrupts

    async def open(self) -> None:
        """Start the engine, in place of one that was lost, and wait until it is ready.

        Raises SkippyError, or Interrupted.
        """
        self.state = ViewState(totals=self.state.totals)
        await self._interrupts.guard(self._open())

    async def answer(self, request: GenerateRequest) -> Request | None:
        """The finished request, also after Ctrl+C, which keeps what there is.

        None if the engine refused it before it began. Raises EngineLost.
        """
        answering = asyncio.create_task(self._follow(request))
        try:
            if not await self._interrupts.done_before(answering):
                await self.client.cancel(request.request)
                await asyncio.wait({answering}, timeout=TIMEOUTS.engine_cancel)
                if not answering.done():
                    raise EngineLost(f"the engine did not stop within {TIMEOUTS.engine_cancel:g} s")
            answering.result()
        finally:
            answering.cancel()
        current = self.state.request
        return current if current is not None and current.id == request.request else None

    async def _open(self) -> None:
        await self.client.restart()
        async for event in self.client.events():
            self._tell(event)
            engine = self.state.engine
            if engine is not None and engine.state == "failed":
                raise reported_error(engine.detail, code=engine.code)
            if engine is not None and engine.state == "ready":
                return

    async def _follow(self, request: GenerateRequest) -> None:
        async for event in self.client.generate(request):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        self.state = apply(event, self.state)
        for listener in self._listeners:
            listener(event, self.state)
