"""The tiny model, and its undisturbed answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.harness import Disturbed, disturbed, plan
from tests.faults.tiny_llama import write_tiny_llama

Undisturbed = Callable[..., Awaitable[list[int]]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(model: Path) -> AsyncIterator[Undisturbed]:
    """Token ids of an answer of the whole model, in this process, that nothing happens to."""
    known: dict[str, list[int]] = {}
    async with disturbed(plan(model, ())) as whole:

        async def ask(question: str = "Tell me a story.", **options: Any) -> list[int]:
            key = repr((question, options))
            if key not in known:
                result = await whole.ask(question, **options)
                assert result["finish_reason"] == "length"
                known[key] = result["token_ids"]
            return known[key]

        yield ask


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three_stages(model: Path) -> AsyncIterator[Disturbed]:
    """The engine and two stage processes, which the tests of a module take turns in killing."""
    async with disturbed(plan(model)) as running:
        yield running
