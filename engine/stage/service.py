"""A stage as a server: lanes in, the next stage out, replies straight to the coordinator.

Everything here runs on the event loop and waits for nothing but the network; compute is the worker's. A lane
that comes in with a route opens its own link to the next stage before it is welcomed, so a chain is either
complete or refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import ssl
from dataclasses import replace

from engine.errors import HandshakeRefused, LinkError, ProtocolError, SkippyError, StageLost
from engine.protocol.handshake import check_hello
from engine.protocol.messages import (
    CancelEpoch,
    ErrorMessage,
    Hello,
    Message,
    Role,
    StageInfo,
    StageStatus,
    Welcome,
)
from engine.stage.worker import Lane, StageWorker
from engine.transport.link import Link
from engine.transport.opener import open_link
from engine.transport.server import Server, serve_links
from engine.transport.timeouts import TIMEOUTS

log = logging.getLogger("skippy.stage")

LANE_QUEUE = 128
"""Most messages of one lane that may wait for the compute thread: twice the deepest pipeline."""


def stage_info(worker: StageWorker) -> StageInfo:
    """What a stage tells those who dial it."""
    stage = worker.stage
    slice_, options = stage.slice, stage.options
    return StageInfo(
        first_layer=slice_.first,
        end_layer=slice_.end,
        n_layers=slice_.n_layers,
        architecture=slice_.architecture,
        model_name=slice_.model_name,
        fingerprint=slice_.fingerprint,
        n_embd=slice_.n_embd,
        context=options.context,
        sequences=options.sequences,
        window_rows=options.batch_rows,
        prefill_rows=options.batch_rows,
        native_mtp=slice_.native_mtp,
        can_rollback=slice_.rules.can_rollback,
        threads=options.threads,
        exact=worker.row_exact,
        pid=os.getpid(),
    )


class StageService:
    """Serves one slice to any number of chains."""

    def __init__(self, worker: StageWorker, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: whom to trust when the next stage of a chain is at `wss://`; None: the system's choice."""
        self.worker = worker
        self._tls = tls
        self.info = stage_info(worker)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._downstream: dict[str, Link] = {}  # chain -> link to the next stage
        self._returns: dict[str, Link] = {}  # chain -> return link to the coordinator
        self._server: Server | None = None

    async def listen(
        self, host: str, port: int, *, token: str, insecure: bool = False, tls: ssl.SSLContext | None = None
    ) -> str:
        """Start serving; returns the URL. Raises LinkError (port in use) or UsageError (unsafe bind)."""
        self._server = await serve_links(
            host,
            port,
            token=token,
            insecure=insecure,
            ssl=tls,
            on_hello=self._welcome,
            on_link=self._serve,
            busy=lambda: (self.worker.busy_ms, self.worker.queued),
        )
        return self._server.url

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        for link in list(self._downstream.values()):
            await link.close("stage stops")

    async def _welcome(self, hello: Hello) -> Welcome:
        """Check a newcomer; for a lane, open the rest of its chain first."""
        if hello.role is Role.CONTROL:
            return Welcome(stages=(self.info,))
        check_hello(hello, self.info)
        is_last = self.info.end_layer == self.info.n_layers
        if hello.role is Role.RETURN:
            if not is_last:
                raise HandshakeRefused("a return link goes to the last stage, and this is not it")
            return Welcome(stages=(self.info,))
        if is_last:
            return Welcome(stages=(self.info,))
        if hello.chain in self._downstream:
            raise HandshakeRefused(f"the chain {hello.chain} is being opened already")
        link = await self._dial_next(hello)
        self._downstream[hello.chain] = link
        self._loop.call_later(TIMEOUTS.hello, self._drop_unclaimed, hello.chain, link)
        return Welcome(stages=(self.info, *link.welcome.stages))

    async def _dial_next(self, hello: Hello) -> Link:
        following, *rest = hello.route
        index = hello.stage_index + 1
        onward = replace(hello, first_layer=self.info.end_layer, stage_index=index, route=tuple(rest))
        try:
            return await open_link(following.url, onward, token=following.token, ssl=self._tls)
        except LinkError as error:
            # The coordinator does not see this address fail, so the message must say which stage it is.
            raise LinkError(f"stage {index}: {error.message}", hint=error.hint, code=error.code) from error

    def _drop_unclaimed(self, chain: str, link: Link) -> None:
        """The opener went away while its chain was being opened."""
        if self._downstream.get(chain) is link:
            del self._downstream[chain]
            self._loop.create_task(link.close("nobody uses this lane"))

    def _serve(self, link: Link) -> None:
        """A handshake is complete: give the link its role."""
        hello = link.hello
        if hello.role is Role.LANE:
            self._serve_lane(link, hello)
        elif hello.role is Role.RETURN:
            self._returns[hello.chain] = link
            link.on_close = lambda link: self._forget_return(hello.chain, link)
            link.on_message = lambda message: None
        else:
            link.on_message = lambda message: link.post(self._status(hello.stage_index))

    def _forget_return(self, chain: str, link: Link) -> None:
        if self._returns.get(chain) is link:
            del self._returns[chain]

    def _status(self, index: int) -> StageStatus:
        worker = self.worker
        return StageStatus(
            stage=index,
            state="busy" if worker.busy_ms else "ready",
            busy_ms=worker.busy_ms,
            queued=worker.queued,
            sessions=worker.sessions,
            refused_frames=self._server.refused if self._server is not None else 0,
        )

    def _serve_lane(self, link: Link, hello: Hello) -> None:
        downstream = self._downstream.pop(hello.chain, None)

        def reply(message: Message) -> None:
            direct = self._returns.get(hello.chain)
            if direct is None or not self._posted(direct, message):
                self._posted(link, message)

        def forward(message: Message) -> None:
            if downstream is not None:
                self._posted(downstream, message)

        lane = Lane(next(self._numbers), hello.stage_index, forward, reply)

        def receive(message: Message) -> None:
            if lane.waiting >= LANE_QUEUE:
                raise ProtocolError(
                    f"more than {LANE_QUEUE} messages of a lane wait for the stage", code="flood"
                )
            self.worker.submit(lane, message)
            # A cancel must overtake the windows that wait here, so it does not queue behind them.
            if isinstance(message, CancelEpoch):
                forward(message)

        def lane_closed(link: Link) -> None:
            log.info("lane %s closed: %s", hello.chain, link.reason)
            self.worker.drop_lane(lane)
            if downstream is not None:
                self._loop.create_task(downstream.close("lane closed"))

        link.on_message = receive
        link.on_close = lane_closed
        if downstream is not None:
            self._watch_downstream(link, downstream, hello)

    def _watch_downstream(self, link: Link, downstream: Link, hello: Hello) -> None:
        """Pass replies up, and tell the coordinator when the next stage goes away."""

        def lost(downstream: Link) -> None:
            if link.closed.is_set():
                return
            index = hello.stage_index + 1
            fault = f"lost stage {index} at {downstream.address}: {downstream.reason}"
            with contextlib.suppress(LinkError):  # it is going down as well
                link.post(ErrorMessage(code=StageLost.code, reason=fault, stage=index, retryable=True))
            self._loop.create_task(link.close(fault))

        downstream.on_message = link.post
        downstream.on_close = lost

    def _posted(self, link: Link, message: Message) -> bool:
        """Send a message, from any thread, or end the link: nothing is dropped that somebody waits for."""
        try:
            link.post(message)
        except SkippyError as error:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the link with it
                self._loop.call_soon_threadsafe(link.fail, error)
            return False
        return True
