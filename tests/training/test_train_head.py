"""`skippy-engine train-head` on a tiny model. What needs PyTorch is skipped where it is not installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from engine.cli.main import main
from engine.errors import UsageError
from engine.model.file import ModelFile
from engine.model.header import check_header
from engine.training import backend
from engine.training.settings import RunFolder, TrainingSettings
from tests.training.tiny_chat import write_tiny_chat

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch, the extra `train`, is not installed"
)
RUN = ("--sequences", "32", "--rows", "160", "--batch", "8", "--eval-tokens", "4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chat.gguf"
    write_tiny_chat(path)
    return path


def test_without_pytorch_one_line_names_the_extra(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    assert main(["train-head", str(model), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error == (
        "skippy-engine: training needs PyTorch, which is not installed; "
        "in the checkout: .venv/bin/pip install --editable '.[train]'\n"
    )


def test_a_folder_with_another_run_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare(resume=False)
    np.save(folder.next_texts(), np.zeros((1, 8), dtype=np.int32))
    with pytest.raises(UsageError, match="holds another run; give --resume"):
        folder.prepare(resume=False)
    folder.prepare(resume=True)
    assert folder.next_texts().name == "texts-0001.npy"


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"learning_rate": 0.0}, {"hard": 1.5}, {"minutes": -1.0}, {"rows": 4}]
)
def test_settings_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        TrainingSettings(**wrong)  # type: ignore[arg-type]


@needs_torch
def test_a_run_writes_head_and_model_and_is_gone_on_with(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["train-head", str(model), "--out", str(out), *RUN, "--json", "--steps"]
    assert main([*command, "15"]) == 0
    texts = [path.read_bytes() for path in sorted(out.glob("texts-*.npy"))]
    summary = json.loads(capsys.readouterr().out)
    trained = ModelFile.open(Path(summary["model"]))
    assert (trained.architecture, trained.n_nextn) == ("mimo2", 1)
    assert set(summary["acceptance"]) == {"drafts_of_1", "drafts_of_3"}
    assert summary["acceptance"]["drafts_of_1"]["verified"][0] > 0
    first_head = check_header(out / "head.gguf").tensors
    assert len(first_head) == 11

    assert main([*command, "15"]) == 2  # not without --resume
    assert "holds another run" in capsys.readouterr().err
    assert main([*command, "15", "--resume"]) == 0
    assert "going on from step 15" in capsys.readouterr().err
    assert [path.read_bytes() for path in sorted(out.glob("texts-*.npy"))] == texts
    assert main([*command, "20", "--resume"]) == 1
    assert "was made with other settings" in capsys.readouterr().err
