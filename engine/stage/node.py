"""A node: a machine that waits for an engine to assign it layers.

It listens, answers questions about the machine, times models, probes the way to other nodes, and starts a
stage process for the layers that it is assigned. It works for one engine at a time, for as long as that one's
link is open; afterwards the stage stays loaded for a while, for the next engine to use.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable

from engine.errors import Busy, HandshakeRefused
from engine.model.pruning import GIB
from engine.protocol.messages import Hello, Role, Welcome
from engine.stage.node_assignment import Assignment
from engine.stage.node_models import ModelFolders
from engine.stage.node_options import NodeOptions
from engine.stage.node_session import NodeSession
from engine.stage.node_store import SliceStore
from engine.transport.link import Link
from engine.transport.probing import serve_probe
from engine.transport.server import Server, serve_links
from engine.transport.timeouts import TIMEOUTS
from engine.transport.tls import client_context, server_context

log = logging.getLogger("skippy.node")


class Node:
    """Everything runs on one event loop; disks are waited for in threads, llama.cpp runs in processes."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.store = SliceStore(int(options.slice_cache_gib * GIB))
        self.models = ModelFolders(options.folders, options.files)
        self.trusted = client_context(options.tls_ca) if options.tls_ca else None
        self.assignment: Assignment | None = None
        self._holder: Link | None = None
        self._held_since = 0.0
        self._session: asyncio.Task[None] | None = None
        self._forget: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._server: Server | None = None

    async def listen(self) -> str:
        """Start waiting; returns the URL. Raises LinkError (port in use) or UsageError (unsafe bind)."""
        options = self.options
        self._server = await serve_links(
            options.host,
            options.port,
            token=options.token,
            insecure=options.insecure,
            ssl=server_context(options.tls_cert, options.tls_key) if options.tls_cert else None,
            on_hello=self._welcome,
            on_link=self._serve,
        )
        return self._server.url

    async def close(self) -> None:
        """End the links and the stage."""
        if self._server is not None:
            await self._server.close("the node is shutting down")
        if self._session is not None:
            await asyncio.wait({self._session})
        await self.drop_assignment()

    async def drop_assignment(self) -> None:
        """End the stage, if there is one."""
        if self._forget is not None:
            self._forget.cancel()
        assignment, self.assignment = self.assignment, None
        if assignment is not None:
            await assignment.stop()

    async def _welcome(self, hello: Hello) -> Welcome:
        if hello.role is Role.NODE:
            self._check_free()
        elif hello.role is not Role.PROBE:
            raise HandshakeRefused(
                "this machine waits for layers and serves none by itself", hint="name it with --node"
            )
        return Welcome(stages=())

    def _check_free(self) -> None:
        if self._holder is not None:
            seconds = time.monotonic() - self._held_since
            raise Busy(
                f"this node works for another engine, at {self._holder.address}, since {seconds:.0f} s ago",
                hint="wait until that one ends, or use another node",
            )

    def _serve(self, link: Link) -> None:
        if link.hello.role is Role.PROBE:
            serve_probe(link)
            return
        self._check_free()  # two may have said hello at the same time
        if self._forget is not None:
            self._forget.cancel()
        log.info("working for the engine at %s", link.address)
        self._holder, self._held_since = link, time.monotonic()
        self._session = asyncio.create_task(NodeSession(self, link).run())
        link.on_close = self._released

    def _released(self, link: Link) -> None:
        """The engine went away. What it waited for is given up; only then the next one may come."""
        log.info("the engine at %s is gone: %s", link.address, link.reason)
        assert self._session is not None
        self._session.cancel()
        self._session.add_done_callback(self._wait_again)

    def _wait_again(self, session: asyncio.Task[None]) -> None:
        if not session.cancelled() and session.exception() is not None:
            log.error("the session of an engine failed", exc_info=session.exception())
        self._holder = None
        self._forget = asyncio.get_running_loop().call_later(TIMEOUTS.node_keep, self._end_stage)

    def _end_stage(self) -> None:
        task = asyncio.create_task(self.drop_assignment())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def serve(options: NodeOptions, ready: Callable[[str], None]) -> None:
    """Wait for engines until SIGTERM or SIGINT; `ready(url)` is called once it listens."""
    node = Node(options)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    ready(await node.listen())
    try:
        await stopped.wait()
    finally:
        await node.close()


def run(options: NodeOptions) -> None:
    """`skippy-engine stage` without layers: wait in the foreground. Raises SkippyError."""
    asyncio.run(serve(options, lambda url: print(f"ready {url} idle", flush=True)))
