"""Layers that are to run on a GPU where llama.cpp has none: one warning, and the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.main import main
from engine.compute.bindings import bindings
from engine.config.plan import ComputePlan
from engine.events import Notice
from tests.coordinator.conftest import StartEngine, plain_plan
from tests.faults.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings(), "llama_supports_gpu_offload", lambda: False)


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(("gpu_layers", "warnings"), [(-1, 1), (0, 0)])
async def test_an_engine_warns_once_that_its_gpu_layers_have_no_gpu(
    start_engine: StartEngine, tmp_path: Path, gpu_layers: int, warnings: int
) -> None:
    model = str(write_tiny_llama(tmp_path / "tiny.gguf"))
    compute = ComputePlan(threads=1, context=256, gpu_layers=gpu_layers)
    running = await start_engine(plain_plan(model, split=(3,), compute=compute))
    told = [notice for notice in running.of_kind(Notice) if notice.code == "no-gpu"]
    assert len(told) == warnings
    for notice in told:
        assert notice.level == "warning"
        assert notice.message.startswith("--gpu-layers -1 has no effect: ")
        assert "docs/gpu.md" in notice.hint


@pytest.mark.usefixtures("without_gpu")
async def test_a_tool_warns_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    call = ["stage", "--model", str(tmp_path / "none.gguf"), "--layers", "0:1", "--gpu-layers", "2"]
    assert main(call) != 0
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("skippy-engine: warning: --gpu-layers 2 has no effect: ")
    assert "none.gguf" in error
