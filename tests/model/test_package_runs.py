"""The default model answers from its package as from its file, also where machines hold parts of it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.compute.whole_loop import plain_loop
from engine.config.manifest import MANIFEST_NAME
from engine.config.plan import RunPlan
from engine.config.resolve import resolve_plan
from engine.coordinator.prompt import PromptBuilder
from engine.model.demo import demo_model
from engine.model.file import ModelFile
from engine.model.packages.write import write_package
from tests.coordinator.conftest import chat_request, start_running

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

PROGRAM = Path(sys.executable).parent / "skippy-engine"
QUESTION = "Name the planets."
TOKENS = 12
FLAGS = {"threads": "1", "context": "512", "strategy": "disabled"}

Answer = Callable[[RunPlan], Awaitable[dict[str, Any]]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaged") / "demo"
    write_package(ModelFile.open(demo_model()), (10, 20), folder)
    return folder


@pytest.fixture(scope="module")
def reference() -> tuple[int, ...]:
    builder = PromptBuilder(ModelFile.open(demo_model()))
    prompt = builder.tokens(chat_request("reference", QUESTION))
    return tuple(plain_loop(demo_model(), prompt, TOKENS, threads=1, exact=False, is_end=builder.is_end))


@pytest_asyncio.fixture(loop_scope="module")
async def answer() -> AsyncIterator[Answer]:
    async with AsyncExitStack() as stack:

        async def ask(plan: RunPlan) -> dict[str, Any]:
            running = await start_running(plan)
            stack.push_async_callback(running.engine.close)
            return await running.ask(QUESTION, max_tokens=TOKENS)

        yield ask


@pytest_asyncio.fixture(loop_scope="module")
async def start_stage() -> AsyncIterator[Callable[[Path, str], Awaitable[str]]]:
    """Starts stage processes; returns their URLs."""
    processes: list[asyncio.subprocess.Process] = []

    async def start(folder: Path, layers: str) -> str:
        command = ("stage", "--model", folder, "--layers", layers, "--threads", "1", "--ctx", "512")
        process = await asyncio.create_subprocess_exec(PROGRAM, *command, stdout=asyncio.subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode().split()
        assert line[:1] == ["ready"]
        return line[1]

    yield start
    for process in processes:
        process.terminate()
        async with asyncio.timeout(10):
            assert await process.wait() == 0


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ({}, [[0, 10], [10, 20], [20, 30]]),
        ({"split": "20"}, [[0, 20], [20, 30]]),  # the first is put together from two slices
    ],
    ids=["as it was cut", "cut anew"],
)
async def test_a_package_answers_like_the_whole_model(
    package: Path, reference: tuple[int, ...], answer: Answer, flags: dict[str, str], layers: list[list[int]]
) -> None:
    result = await answer(resolve_plan({"model": str(package), **FLAGS, **flags}, None))
    assert tuple(result["token_ids"]) == reference
    assert [stage["layers"] for stage in result["stages"]] == layers


async def test_every_machine_holds_its_part_and_the_front_no_layer(
    package: Path,
    reference: tuple[int, ...],
    tmp_path: Path,
    start_stage: Callable[[Path, str], Awaitable[str]],
    answer: Answer,
) -> None:
    parts = {
        "front": ("front.gguf",),
        "first": ("front.gguf", "layers-0-10.gguf"),
        "middle": ("layers-10-20.gguf",),
        "last": ("layers-20-30.gguf",),
    }
    for name, files in parts.items():
        (tmp_path / name).mkdir()
        for file in (MANIFEST_NAME, *files):
            shutil.copy(package / file, tmp_path / name / file)
    spans = {"first": "0:10", "middle": "10:20", "last": "20:"}
    urls = [await start_stage(tmp_path / name, span) for name, span in spans.items()]
    result = await answer(resolve_plan({"model": str(tmp_path / "front"), "remote": urls, **FLAGS}, None))
    assert tuple(result["token_ids"]) == reference
    assert [stage["layers"] for stage in result["stages"]] == [[0, 10], [10, 20], [20, 30]]
