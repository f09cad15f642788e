"""What can be known before the app opens or a plan changes: headers are read, nothing is loaded or built."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.client.link import EngineLink, LinkClosed
from engine.config.manifest import is_package
from engine.config.plan import RunPlan
from engine.coordinator.layout import check_fingerprint, check_split, stage_count
from engine.errors import LinkError, ProtocolError, Unauthorized
from engine.model.architectures import architecture_of
from engine.model.demo import DEMO, demo_path, demo_weights
from engine.model.file import ModelFile
from engine.model.packages.source import open_model
from engine.timeouts import TIMEOUTS

SERVE = "skippy-engine serve"


def check_plan(plan: RunPlan) -> None:
    """Raise the SkippyError that an engine would report: of the model's file, or of where it is to be cut."""
    if is_package(Path(plan.model).expanduser()):
        return  # its parts may still have to be fetched
    if plan.model == DEMO and not demo_path().is_file():
        model = ModelFile.open(demo_weights())  # it has the layers of the model that will be built of it
    else:
        model = open_model(plan.model)
        check_fingerprint(plan, model)
    if plan.topology.use_nodes or plan.topology.remote:
        return  # they say where layers go
    if stage_count(plan, model) > 1:
        architecture_of(model)
    check_split(plan.topology.split, model.n_layers)


def check_engine(url: str, token: str) -> None:
    """Attach to an engine of somebody else's once, and hear from it. Raises LinkError or Unauthorized."""
    asyncio.run(_hear(url, token))


async def _hear(url: str, token: str) -> None:
    try:
        link = await EngineLink.open(url, token, TIMEOUTS)
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=f"give --token-file FILE, which {SERVE} prints") from None
    except LinkError as error:
        raise LinkError(error.message, hint=f"{SERVE} starts an engine and prints its address") from None
    try:
        # It says at once how it is. A stage or a node does not, or says something else.
        async with asyncio.timeout(TIMEOUTS.connect):
            await link.next_event()
    except (LinkClosed, ProtocolError, TimeoutError):
        raise LinkError(
            f"what listens at {url} is no engine to attach to",
            hint=f"give the address that {SERVE} prints; a stage belongs to --stage, a node to --node",
        ) from None
    finally:
        await link.close()
