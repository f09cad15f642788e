"""Two runs beside each other: which ratios agree, and what is said of those that do not."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from engine.bench.comparison import Comparison, Run, compare
from engine.bench.report import RESULT_NAME, Result
from engine.bench.summary import summarize
from engine.cli.main import main
from engine.errors import UsageError
from tests.bench.samples import HEAD, measured, split

PLAIN, AUTO = split(rtt_ms=20.0), split("auto", 20.0)


def result(folder: Path, *auto_ms: float, **settings: object) -> Path:
    """A run in which plain decoding took 20 ms a token, and `auto` so many in each round."""
    found = [measured(PLAIN, 20.0, round=number) for number in range(len(auto_ms))]
    found += [measured(AUTO, ms, round=number) for number, ms in enumerate(auto_ms)]
    summary = summarize([PLAIN, AUTO], found)
    folder.mkdir()
    told = Result({**HEAD, **settings}, "2026-01-01", summary, (), 0).to_json()
    (folder / RESULT_NAME).write_bytes(orjson.dumps(told))
    return folder


def compared(first: Path, second: Path) -> Comparison:
    return compare(Run.read(first), Run.read(second))


def test_runs_agree_where_the_ranges_of_their_ratios_overlap(tmp_path: Path) -> None:
    found = compared(result(tmp_path / "a", 10.0, 12.5, 16.0), result(tmp_path / "b", 16.0, 20.0))
    (pair, ratio) = found.ratios[0]
    assert (pair.group, pair.arm, ratio.what, ratio.agree) == ("chat", AUTO.name, "x plain", True)
    assert (ratio.first.median, ratio.second.median) == (1.6, 1.125)
    assert len(found.ratios) == 1  # that of plain decoding to itself is none
    assert found.verdict() == "The runs agree: the ranges of all ratios overlap (1)."
    assert "Not the same" not in found.to_markdown()


def test_a_ratio_out_of_the_other_run_s_range_is_named(tmp_path: Path) -> None:
    first, second = result(tmp_path / "a", 10.0, 12.5), result(tmp_path / "b", 20.0, 25.0, max_tokens=64)
    found = compared(first, second)
    assert found.to_json()["agree"] == 0
    assert found.verdict().endswith("0 of 1 ratios overlap, not those of: chat, auto, 20 ms: x plain.")
    assert "Not the same in both: max_tokens 9 and 64." in found.to_markdown()
    assert "| auto, 20 ms | 90.0 (80.0 - 100.0) | 45.0 (40.0 - 50.0) | 1.80" in found.to_markdown()


def test_the_command_prints_tables_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(result(tmp_path / name, 10.0)) for name in "ab"]
    assert main(["bench", "--compare", *folders]) == 0
    assert "The runs agree" in capsys.readouterr().out
    assert main(["bench", "--compare", *folders, "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert (told["ratios"], told["agree"], told["other_settings"]) == (1, 1, {})


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "cannot read"),
        (b"{", "is no result"),
        (b"[]", "is no result"),
        (b'{"cells": [{"arm": "x", "speed": 1}]}', "cell has no field 'speed'"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: bytes | None, cause: str) -> None:
    if content is not None:
        (tmp_path / RESULT_NAME).write_bytes(content)
    with pytest.raises(UsageError, match=cause):
        Run.read(tmp_path)
