"""Layers that a node was assigned, and the stage process that serves them."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.errors import CacheError, LinkError, SkippyError
from engine.model.file import ModelFile
from engine.model.paths import log_dir
from engine.model.slices import ensure_slice
from engine.protocol.messages import Hello, Role
from engine.protocol.node_messages import Assign, Assigned
from engine.stage.child import LocalStage
from engine.stage.node_models import ModelFolders
from engine.stage.node_options import NodeOptions
from engine.stage.node_store import SliceStore
from engine.stage.process import StageSettings
from engine.transport.addresses import Address, parse_url
from engine.transport.opener import open_link
from engine.transport.timeouts import TIMEOUTS

Report = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much of it."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Assignment:
    """One stage process. The node lives on whatever happens in it."""

    def __init__(self, assign: Assign, options: NodeOptions, path: Path, source: str) -> None:
        self._what = _without_place(assign)
        self._source = source
        self._secure = bool(options.tls_cert)
        self.stage = LocalStage(assign.stage_index, _settings(assign, options, path), log_dir())

    def fits(self, assign: Assign) -> bool:
        """Whether this is what an engine asks for."""
        return self._what == _without_place(assign)

    async def start(self) -> Assigned:
        """Load the slice and listen. Raises what the process reports, or StageLost."""
        await self.stage.start()
        return self._assigned(self._source)

    async def running(self) -> Assigned | None:
        """The answer for an engine that finds the stage at work; None if it does not answer."""
        loaded = self.stage.running and self.stage.url
        return self._assigned("running") if loaded and await self._answers() else None

    async def stop(self) -> None:
        await self.stage.stop()

    async def kill(self) -> None:
        """End a stage that does not answer."""
        await self.stage.kill()

    def _assigned(self, source: str) -> Assigned:
        port = parse_url(self.stage.url).port
        return Assigned(port=port, source=source, token=self.stage.settings.token, pid=self.stage.pid)

    async def _answers(self) -> bool:
        listens = parse_url(self.stage.url)
        here = Address(_WILDCARDS.get(listens.host, listens.host), listens.port, listens.secure)
        hello = Hello(role=Role.CONTROL, chain=secrets.token_hex(8))
        try:
            async with asyncio.timeout(TIMEOUTS.probe):
                link = await open_link(here.url, hello, token=self.stage.settings.token, ssl=_own_child())
        except (LinkError, TimeoutError):
            return False
        await link.close("it answers")
        return True


def find_slice(
    assign: Assign, store: SliceStore, models: ModelFolders, report: Report
) -> tuple[Path, str] | None:
    """The slice on this machine, and where it comes from: the cache, or a model of this machine's own, from
    which it is cut if it is no package. None if there is neither. Blocks; raises SkippyError.
    """
    report("checking", 0, 0)
    kept = store.find(assign.fingerprint, assign.sha256)
    if kept is not None:
        return kept, "cache"
    packaged = models.packaged(assign.fingerprint, assign.sha256)
    if packaged is not None:
        return packaged, "model"
    own = models.find(assign.fingerprint)
    if own is None:
        return None

    def cutting(done: int, total: int) -> None:
        report("cutting", done, total)

    cut = ensure_slice(ModelFile.open(own), assign.first, assign.end, progress=cutting)
    if store.find(assign.fingerprint, assign.sha256) != cut.path:
        return None  # other weights under the same header
    return cut.path, "model"


def missing_slice(assign: Assign, options: NodeOptions) -> SkippyError:
    """Why the layers cannot be served."""
    what = f"layers {assign.first}:{assign.end} of {assign.model_name}"
    if assign.offered and not options.accept_slices:
        hint = "start it with --accept-slices, or put the same model file into a folder of its --models"
    else:
        hint = "allow the transfer in front, or put the same model file into a folder of the node's --models"
    return CacheError(f"this node has no copy of {what}", hint=hint, code="no-slice")


def _without_place(assign: Assign) -> Assign:
    """What a stage is made of: neither its number in the chain nor who would have sent it."""
    return replace(assign, stage_index=0, offered=False, model_name="")


def _settings(assign: Assign, options: NodeOptions, path: Path) -> StageSettings:
    return StageSettings(
        model=str(path),
        first=assign.first,
        end=assign.end,
        host=options.host,
        port=options.stage_port,
        insecure=options.insecure,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_ca=options.tls_ca,
        threads=options.threads_for(assign.threads),
        exact=assign.exact,
        gpu_layers=options.gpu_layers,
        gpu_device=options.gpu_device,
        context=assign.context,
        sequences=assign.sequences,
        batch_rows=assign.batch_rows,
    )


def _own_child() -> ssl.SSLContext:
    """The certificate of a stage names the machine as others dial it; this one dials its own child."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
