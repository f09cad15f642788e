"""The budget of a token, from marks whose times are known."""

from __future__ import annotations

import importlib
from itertools import pairwise
from pathlib import Path

import pytest

from engine.bench.budget import WIRE, budget
from engine.bench.traced import _WRAPPED, Mark, Marks, Point, read_marks
from engine.cli.main import main
from engine.errors import SkippyError

US = 1000


def token_of_two_processes(start: int) -> tuple[list[Mark], list[Mark]]:
    """One token: 5 µs to decide, 10 on the way, 100 of llama.cpp at a stage, 20 back."""
    coordinator = [
        Mark(Point.DECIDING, 1, start, start // 10),
        Mark(Point.WRITING, 1, start + 5 * US, start // 10 + 3 * US),
        Mark(Point.ARRIVED, 1, start + 135 * US, start // 10 + 4 * US),
    ]
    stage = [
        Mark(Point.ARRIVED, 2, start + 15 * US, 0),
        Mark(Point.COMPUTING, 3, start + 15 * US, start // 2),
        Mark(Point.COMPUTED, 3, start + 115 * US, start // 2 + 90 * US),
    ]
    return coordinator, stage


def test_steps_are_the_times_between_marks_of_all_processes() -> None:
    tokens = [token_of_two_processes(number * 140 * US) for number in range(5)]
    marks = {
        "engine": [mark for coordinator, _ in tokens for mark in coordinator],
        "stage": [mark for _, stage in tokens for mark in stage],
    }
    found = budget("two", marks)
    assert found.tokens == 4  # the last one has no end
    assert found.token_us == 140
    by_process = [(step.process, step.median_us) for step in found.steps]
    assert by_process == [
        ("engine", 5),
        (WIRE, 10),
        ("stage", 0),
        ("stage", 100),
        (WIRE, 20),
        ("engine", 5),
    ]
    assert sum(step.median_us for step in found.steps) == found.token_us
    assert {(work.thread, work.llama_us) for work in found.work} == {
        ("event loop", 0),
        ("compute thread", 90),
    }


def test_tokens_with_other_marks_among_theirs_are_left_out() -> None:
    tokens = [token_of_two_processes(number * 140 * US) for number in range(6)]
    heartbeat = Mark(Point.WRITING, 1, 2 * 140 * US + 50 * US, 0)
    marks = {
        "engine": [*(mark for coordinator, _ in tokens for mark in coordinator), heartbeat],
        "stage": [mark for _, stage in tokens for mark in stage],
    }
    assert budget("two", marks).tokens == 4


def test_too_few_tokens_are_said_to_be_too_few() -> None:
    coordinator, stage = token_of_two_processes(0)
    with pytest.raises(SkippyError, match="too few tokens"):
        budget("two", {"engine": coordinator, "stage": stage})


def test_marks_are_read_as_they_were_made(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    for _ in range(256):
        marks.add(Point.SAMPLED)
    read = read_marks(tmp_path / "marks")
    assert len(read) == 256
    assert all(a.at <= b.at and a.cpu <= b.cpu for a, b in pairwise(read))


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name, _, _ in _WRAPPED])
def test_every_marked_function_exists(module: str, name: str) -> None:
    owner, method = name.split(".")
    assert callable(getattr(getattr(importlib.import_module(module), owner), method))


def test_a_file_without_a_place_for_the_tables_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    assert main(["bench", "--budget", "--write", str(page)]) == 2
    assert "has no place for the tables" in capsys.readouterr().err
