"""What an answer is made with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from engine.client.requests import GenerateRequest
from engine.config.plan import SpeculationPlan
from engine.coordinator.chain import Chain
from engine.coordinator.drafting import Drafting
from engine.coordinator.prompt import PromptBuilder
from engine.coordinator.slots import Slot


@dataclass(frozen=True, slots=True)
class GenerationSetting:
    """Everything an answer needs."""

    request: GenerateRequest
    prompt: list[int]
    slot: Slot
    chain: Chain
    prompts: PromptBuilder
    drafting: Drafting
    speculation: SpeculationPlan
    context: int
    window_rows: int
    prefill_rows: int
    model: dict[str, Any]
    exact: bool
    restarts: Callable[[], dict[int, int]]
    recover: Callable[[bool], Awaitable[Chain]]  # a new chain for a lost one; True: tokens are at stake
