"""`skippy-engine verify`: what it prints, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cli.main import main
from engine.cli.verify import _show_progress
from tests.cli.programs import environment
from tests.conformance.cases import MODELS

Verify = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verify:
    """Calls `skippy-engine verify` for a tiny model of five layers; gives the lines of both outputs."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    MODELS["llama"].write(tmp_path / "tiny.gguf")

    def call(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = main(["verify", str(tmp_path / "tiny.gguf"), *arguments])
        written = capsys.readouterr()
        return code, written.out.splitlines(), written.err.splitlines()

    return call


def test_the_last_line_is_the_verdict_over_all_cuts(verify: Verify) -> None:
    code, out, err = verify()
    assert code == 0
    assert out[-1] == "4 cuts, 636 positions: no difference"
    assert err == [f"cut {cut} of 4" for cut in range(1, 5)]


def test_the_verdict_counts_what_differs(verify: Verify) -> None:
    code, out, _ = verify("--splits", "2,4", "--wire", "q8")
    assert code == 0  # rounding was asked for
    assert out[-1].startswith("1 split, 159 positions: logits differ in 1 of 1, by up to ")
    assert out[1].split()[1] in out[-1]


def test_json_is_one_object_and_nothing_else(verify: Verify) -> None:
    _, out, _ = verify("--json")
    (line,) = out
    assert len(json.loads(line)["cuts"]) == 4


@pytest.mark.parametrize(("cuts", "lines"), [(1, 1), (5, 5), (29, 10), (95, 10)])
def test_progress_is_about_ten_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], cuts: int, lines: int
) -> None:
    for cut in range(1, cuts + 1):
        _show_progress(cut, cuts)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == lines
    assert shown[-1] == f"cut {cuts} of {cuts}"
