"""Shared by the scripts that measure: an engine that has loaded, and an answer of it."""

from __future__ import annotations

from typing import Any

from engine.client.client import EngineClient
from engine.client.requests import GenerateRequest
from engine.events import EngineState, RequestFinished


async def ready(client: EngineClient) -> None:
    """Wait until an engine has loaded."""
    async for event in client.events():
        if isinstance(event, EngineState) and event.state in ("ready", "failed"):
            assert event.state == "ready", event.detail
            return


async def answer(client: EngineClient, name: str, prompt: str, strategy: str, tokens: int) -> dict[str, Any]:
    """The JSON result of a chat with one question."""
    request = GenerateRequest(
        request=name,
        messages=({"role": "user", "content": prompt},),
        max_tokens=tokens,
        strategy=strategy,
    )
    async for event in client.generate(request):
        if isinstance(event, RequestFinished):
            assert event.finish_reason != "error", event.result
            return event.result
    raise AssertionError("no end")
