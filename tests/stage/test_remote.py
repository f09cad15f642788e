"""Stages that somebody started by hand, and what happens when they do not fit."""

from __future__ import annotations

import asyncio
import importlib.metadata
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from engine.compute.whole_loop import plain_loop
from engine.config.plan import RunPlan, StageAddress, TopologyPlan
from engine.coordinator.prompt import PromptBuilder
from engine.errors import HandshakeRefused, SkippyError, Unauthorized
from engine.model.demo import WEIGHTS_PACKAGE, demo_model
from engine.model.file import ModelFile
from tests.coordinator.conftest import Running, chat_request, plain_plan, start_running

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

PROGRAM = Path(sys.executable).parent / "skippy-engine"
TOKEN = "a-token-of-these-tests"
QUESTION = "Name the planets."

StartStage = Callable[..., Awaitable[str]]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def start_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StartStage]:
    """Starts stage processes, one per span of layers; returns their URLs."""
    token_file = tmp_path_factory.mktemp("token") / "token"
    token_file.write_text(TOKEN)
    running: dict[tuple[str, str], tuple[asyncio.subprocess.Process, str]] = {}

    async def start(layers: str, model: str = "demo") -> str:
        if (layers, model) not in running:
            process = await asyncio.create_subprocess_exec(
                PROGRAM, "stage", "--model", model, "--layers", layers, "--token-file", token_file,
                "--threads", "1", "--ctx", "512", stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            async with asyncio.timeout(60):
                line = (await process.stdout.readline()).decode()
            word, url, *rest = line.split()
            assert (word, rest[0], rest[2]) == ("ready", "layers", "model"), line
            running[(layers, model)] = (process, url)
        return running[(layers, model)][1]

    yield start
    for process, _ in running.values():
        process.terminate()
        async with asyncio.timeout(10):
            assert await process.wait() == 0


def remote_plan(*urls: str, token: str = TOKEN) -> RunPlan:
    addresses = tuple(StageAddress(url, token) for url in urls)
    return plain_plan(topology=TopologyPlan(stages=len(urls) + 1, remote=addresses))


@pytest_asyncio.fixture(loop_scope="module")
async def attach() -> AsyncIterator[Callable[[RunPlan], Awaitable[Running]]]:
    """Starts engines and ends them after the test."""
    async with AsyncExitStack() as stack:

        async def start(plan: RunPlan) -> Running:
            running = await start_running(plan)
            stack.push_async_callback(running.engine.close)
            return running

        yield start


@pytest.mark.parametrize("spans", [("15:30",), ("10:20", "20:"), ("0:15", "15:30"), ("0:30",)], ids=str)
async def test_running_stages_answer_like_the_whole_model(
    start_stage: StartStage, attach: Callable[[RunPlan], Awaitable[Running]], spans: tuple[str, ...]
) -> None:
    urls = [await start_stage(span) for span in spans]
    running = await attach(remote_plan(*urls))
    result = await running.ask(QUESTION, max_tokens=12)
    builder = PromptBuilder(ModelFile.open(demo_model()))
    prompt = builder.tokens(chat_request("reference", QUESTION))
    assert tuple(result["token_ids"]) == plain_loop(demo_model(), prompt, 12)
    assert [stage["layers"][1] for stage in result["stages"]][-1] == 30


async def test_a_stage_serves_one_engine_after_the_other(
    start_stage: StartStage, attach: Callable[[RunPlan], Awaitable[Running]]
) -> None:
    url = await start_stage("15:30")
    answers = []
    for _ in range(3):  # each holds the only sequence, so it must be free again afterwards
        running = await attach(remote_plan(url))
        answers.append((await running.ask(QUESTION, max_tokens=5))["token_ids"])
        await running.engine.close()
    assert answers[0] == answers[1] == answers[2]


async def test_a_wrong_token_is_refused(start_stage: StartStage) -> None:
    with pytest.raises(Unauthorized, match="refused the token"):
        await start_running(remote_plan(await start_stage("15:30"), token="another"))


async def test_no_token_is_refused(start_stage: StartStage) -> None:
    with pytest.raises(Unauthorized, match="asks for a token"):
        await start_running(remote_plan(await start_stage("15:30"), token=""))


async def test_a_stage_of_another_model_is_refused_by_name(start_stage: StartStage) -> None:
    files = importlib.metadata.files(WEIGHTS_PACKAGE) or []
    (original,) = (str(file.locate()) for file in files if file.name.endswith(".gguf"))
    url = await start_stage("15:30", model=original)
    with pytest.raises(HandshakeRefused, match="SmolLM2-135M-Instruct-MTP") as refusal:
        await start_running(remote_plan(url))
    assert "same model file" in str(refusal.value)


@pytest.mark.parametrize(
    ("spans", "named"),
    [(("10:20",), "20"), (("10:15", "20:"), "15"), (("15:30", "20:"), "30")],
    ids=str,
)
async def test_layers_that_do_not_follow_each_other_are_refused(
    start_stage: StartStage, spans: tuple[str, ...], named: str
) -> None:
    urls = [await start_stage(span) for span in spans]
    with pytest.raises(SkippyError, match=named):
        await start_running(remote_plan(*urls))


async def test_garbage_on_the_port_hurts_nobody(
    start_stage: StartStage, attach: Callable[[RunPlan], Awaitable[Running]]
) -> None:
    url = await start_stage("15:30")
    host, _, port = url.removeprefix("ws://").partition(":")
    for garbage in (b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"x" * 200):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        writer.write_eof()
        await reader.read()
        writer.close()
    running = await attach(remote_plan(url))
    assert (await running.ask(QUESTION, max_tokens=3))["finish_reason"] == "length"


async def test_a_port_in_use_is_one_line(start_stage: StartStage) -> None:
    url = await start_stage("15:30")
    taken = url.removeprefix("ws://")
    done = await asyncio.to_thread(
        subprocess.run,
        [PROGRAM, "stage", "--model", "demo", "--layers", "15:30", "--listen", taken],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert taken.split(":")[1] in done.stderr


async def test_a_stage_for_the_network_needs_a_token() -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [PROGRAM, "stage", "--model", "demo", "--layers", "15:30", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "--token-file" in done.stderr
