"""One lane through all stages, as the coordinator sees it: messages in, replies of the last stage out.

The first stage may run in this process (`StageWorker`), the others are reached over links. Replies of the
last stage come straight back on a return link where there is one to open, else on the lane; the answer is the
same.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from ssl import SSLContext

from engine.errors import HandshakeRefused, LinkError, SkippyError, StageLost, Unauthorized
from engine.protocol.messages import (
    CancelEpoch,
    ErrorMessage,
    Hello,
    Hop,
    LinkEmulation,
    Message,
    Role,
    StageInfo,
    WireType,
)
from engine.protocol.sessions import ReplyOrder
from engine.stage.service import stage_info
from engine.stage.worker import Lane, StageWorker
from engine.transport.link import Link
from engine.transport.opener import open_link
from engine.transport.timeouts import TIMEOUTS

log = logging.getLogger("skippy.chain")

RETURN_LINK = "return-link"
"""Code of warnings, and of the loss of a chain, that are about the return link alone."""

_LANE_BROKEN = frozenset({StageLost.code, "checksum"})
"""Codes of errors after which another lane can go on with the answer."""

_lane_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """What a chain is made of: the stage in this process, if any, and the hops after it."""

    hops: tuple[Hop, ...]
    direct: bool = True  # open a return link, if there is more than one hop
    tls: SSLContext | None = None  # whom to trust at wss://; None: the system's certificates
    wire: WireType = WireType.F32
    emulation: LinkEmulation = LinkEmulation()
    window_rows: int = 1
    prefill_rows: int = 1
    context: int = 0
    sequences: int = 1


class Chain:
    """A lane. `on_message(message, route)` gets every reply; `on_lost(error)` is called once if it breaks.

    Both run on the event loop, `on_lost` only once it has been opened. `route` is local | lane | direct.
    """

    def __init__(
        self,
        worker: StageWorker | None,
        on_message: Callable[[Message, str], None],
        on_lost: Callable[[StageLost], None],
        on_warning: Callable[[str, str], None],
    ) -> None:
        self.stages: tuple[StageInfo, ...] = ()
        self.emulation = LinkEmulation()  # that its links were opened with
        self._loop = asyncio.get_running_loop()
        self.lost: StageLost | None = None
        self._worker = worker
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_warning = on_warning
        self._link: Link | None = None
        self._return: Link | None = None
        self._lane: Lane | None = None
        self._order = ReplyOrder()  # one for both ways that replies can take
        self._tls: SSLContext | None = None
        self._opened = False
        self._closing = False

    async def open(self, settings: ChainSettings, identity: Hello) -> None:
        """Shake hands with every stage. `identity` names the model; raises LinkError or HandshakeRefused."""
        self.emulation = settings.emulation
        local = () if self._worker is None else (stage_info(self._worker),)
        hello = replace(
            identity,
            role=Role.LANE,
            chain=secrets.token_hex(8),
            first_layer=local[0].end_layer if local else 0,
            stage_index=len(local),
            wire=settings.wire,
            window_rows=settings.window_rows,
            prefill_rows=settings.prefill_rows,
            context=settings.context,
            sequences=settings.sequences,
            route=settings.hops[1:],
            emulation=settings.emulation,
        )
        remote: tuple[StageInfo, ...] = ()
        if settings.hops:
            remote = await self._dial(hello, settings)
        self.stages = local + remote
        if not self.stages or self.stages[-1].end_layer != identity.n_layers:
            reached = self.stages[-1].end_layer if self.stages else 0
            raise HandshakeRefused(
                f"the stages hold layers 0:{reached}, the model has {identity.n_layers}",
                hint=f"add a stage with --layers {reached}:{identity.n_layers}",
            )
        if self._worker is not None:
            self._lane = Lane(
                next(_lane_numbers),
                0,
                forward=self._forward,
                reply=lambda message: _call(self._loop, self._receive, message, "local"),
            )
        if self.lost is not None:
            raise self.lost
        self._opened = True

    async def _dial(self, hello: Hello, settings: ChainSettings) -> tuple[StageInfo, ...]:
        first, last = settings.hops[0], settings.hops[-1]
        self._tls = settings.tls
        try:
            self._link = await open_link(
                first.url,
                hello,
                token=first.token,
                order=self._order,
                ssl=self._tls,
                on_message=lambda message: self._receive(message, "lane"),
                on_close=lambda link: self._broken(link.reason),
            )
        except Unauthorized:
            raise
        except LinkError as error:
            index = hello.stage_index
            raise StageLost(f"stage {index}: {error.message}", hint=error.hint, stage=index) from error
        stages = self._link.welcome.stages
        if len(stages) > 1:
            if settings.direct:
                await self._open_return(hello, last, len(stages))
            else:
                self._warn_lane("it broke before")
        urls = (hop.url for hop in settings.hops)
        return tuple(
            replace(info, where=url.partition("://")[2]) for info, url in zip(stages, urls, strict=True)
        )

    async def _open_return(self, hello: Hello, last: Hop, count: int) -> None:
        """Dial the last stage. Failing is no fault: its replies then take the lane."""
        index = hello.stage_index + count - 1
        assert self._link is not None
        returning = replace(
            hello,
            role=Role.RETURN,
            route=(),
            first_layer=self._link.welcome.stages[-1].first_layer,
            stage_index=index,
        )
        try:
            async with asyncio.timeout(TIMEOUTS.return_link):
                self._return = await open_link(
                    last.url,
                    returning,
                    token=last.token,
                    order=self._order,
                    ssl=self._tls,
                    on_message=lambda message: self._receive(message, "direct"),
                    on_close=lambda link: self._return_broken(link.reason),
                )
        except (LinkError, HandshakeRefused) as error:
            self._warn_lane(str(error))
        except TimeoutError:
            self._warn_lane(f"no answer within {TIMEOUTS.return_link:g} s")

    def _return_broken(self, reason: str) -> None:
        """Replies that were on their way are gone, so the lane is of no more use either: it is opened anew,
        without a return link. But a stage that died takes both with it, and the news of that come first."""
        if self._closing or self.lost is not None:
            return
        fault = StageLost(f"the return link to the last stage broke: {reason}", code=RETURN_LINK)
        asyncio.get_running_loop().call_later(TIMEOUTS.return_grace, self._lose, fault)

    def _warn_lane(self, reason: str) -> None:
        self._on_warning(RETURN_LINK, f"replies take the lane: no return link to the last stage ({reason})")

    @property
    def rtt_ms(self) -> float:
        """Round trip to the next stage as the heartbeat measures it; 0 without one."""
        return (self._link.rtt_ms or 0.0) if self._link is not None else 0.0

    def send(self, message: Message) -> None:
        """Hand a message to the first stage. Raises StageLost when the chain is broken."""
        if self.lost is not None:
            raise self.lost
        if self._worker is None or self._lane is None:
            self._forward(message)
            return
        self._worker.submit(self._lane, message)
        # A cancel overtakes the windows that wait at stage 0.
        if isinstance(message, CancelEpoch):
            self._forward(message)

    def _forward(self, message: Message) -> None:
        """Send to the next stage, also from the compute thread."""
        if self._link is None:
            return
        try:
            self._link.post(message)
        except SkippyError as error:  # also what must not be sent: somebody waits for the answer
            _call(self._loop, self._broken, str(error))

    def _receive(self, message: Message, route: str) -> None:
        if self.lost is not None or self._closing:
            return  # whatever it is, the answer goes on, or went on, without this lane
        if isinstance(message, ErrorMessage) and message.code in _LANE_BROKEN:
            self._lose(StageLost(message.reason, stage=message.stage))
            return
        self._on_message(message, route)

    def _broken(self, reason: str) -> None:
        index = 0 if self._worker is None else 1
        where = self.stages[index].where if self.stages else "its address"
        self._lose(StageLost(f"lost stage {index} at {where}: {reason}", stage=index))

    def give_up(self) -> None:
        """Use it no more: what is under way on it is not waited for."""
        if self.lost is None:
            self.lost = StageLost("this lane was given up")

    def _lose(self, error: StageLost) -> None:
        if self._closing or self.lost is not None:
            return
        self.lost = error
        if self._opened:
            self._on_lost(error)

    async def close(self) -> None:
        """Leave every stage; their sequences are freed."""
        self._closing = True
        if self._worker is not None and self._lane is not None:
            self._worker.drop_lane(self._lane)
        links = [link for link in (self._return, self._link) if link is not None]
        await asyncio.gather(*(link.close("chain closed") for link in links))


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """Run something on the loop, from any thread; a loop that has ended wants no more messages."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        log.debug("the loop has ended; %s dropped", function.__name__)


async def probe(hop: Hop, tls: SSLContext | None = None) -> StageInfo:
    """Ask a stage what it holds. Raises LinkError or Unauthorized."""
    hello = Hello(role=Role.CONTROL, chain=secrets.token_hex(8))
    link = await open_link(hop.url, hello, token=hop.token, ssl=tls)
    try:
        return link.welcome.stages[0]
    finally:
        await link.close("probe done")
