"""`skippy-engine bench` as a command: refusals, a whole run, and one that is killed and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.bench.record import Record, recorded_call
from engine.cli.bench_call import given_options, with_recorded
from engine.cli.bench_options import add_bench_options
from engine.cli.main import main
from engine.cli.options import Parser

ROOT = Path(__file__).parents[2]
RUN = ("--limit", "1", "--category", "chat", "--repeat", "2", "--strategies", "auto", "--max-tokens", "8")
COMMAND = (sys.executable, "-m", "engine.cli.main", "bench", *RUN, "--emulate-rtt-ms", "0", "--stages", "1")


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--strategies", "mpt"], "did you mean mtp"),
        (["--emulate-rtt-ms", "fast"], "must hold milliseconds"),
        (["--emulate-rtt-ms", "-3"], "between 0 and 60000"),
        (["--repeat", "0"], "must be at least 1"),
        (["--resume"], "give --out DIR"),
        (["--suite", "/no/such.jsonl"], "cannot read the suite"),
        (["--ctx", "64"], "give --ctx"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_reason(
    arguments: list[str], cause: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = [] if "--resume" in arguments else ["--out", str(tmp_path / "run")]
    assert main(["bench", *arguments, *out]) == 2
    assert cause in capsys.readouterr().err


def test_a_report_of_no_run_is_refused_and_begins_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "--report", "--out", str(tmp_path / "run")]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def measurements(folder: Path) -> list[dict[str, Any]]:
    """What the record holds, without its head; a line that is being written is none yet."""
    lines = (folder / "measurements.jsonl").read_bytes().split(b"\n")[1:-1]
    return [orjson.loads(line) for line in lines]


def test_a_resumed_call_takes_what_it_does_not_say_from_the_record(tmp_path: Path) -> None:
    parser = Parser()
    add_bench_options(parser)
    begun = parser.parse_args([*RUN, "--baseline", "--exact", "--out", "a"])
    with Record(tmp_path, {"suite": "builtin"}, resume=False, call=given_options(begun)):
        pass
    resumed = parser.parse_args(["--resume", "--out", "a"])
    whole = with_recorded(resumed, recorded_call(tmp_path))
    assert vars(whole) == {**vars(begun), "resume": True}
    other = parser.parse_args(["--resume", "--out", "a", "--repeat", "3"])
    assert with_recorded(other, recorded_call(tmp_path)).repeat == 3  # which the record then refuses


@pytest.mark.model
@pytest.mark.slow
def test_a_killed_run_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*COMMAND, "--out", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while "left: round 1" not in (line := running.stderr.readline()):
            assert line, "the run ended before it had measured anything"
        running.kill()
    before = measurements(folder)
    assert before
    done = subprocess.run(
        [*COMMAND[:4], "--resume", "--out", str(folder), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    after = measurements(folder)
    assert after[: len(before)] == before
    keys = [(one["round"], one["workload"], one["arm"]) for one in after]
    assert len(keys) == len(set(keys)) == 4  # two rounds of plain and auto
    result = orjson.loads(done.stdout)
    assert result["differences"] == []
    assert {cell["rounds"] for cell in result["cells"]} == {2}
    told = subprocess.run(
        [*COMMAND[:4], "--report", "--out", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 rounds after a warm-up" in told.stdout, told.stderr
    assert measurements(folder) == after
    assert {"report.md", "result.json", "plot.svg"} <= {path.name for path in folder.iterdir()}


@pytest.mark.model
@pytest.mark.slow
def test_ctrl_c_while_llama_cpp_computes_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*COMMAND, "--baseline", "--category", "copy", "--max-tokens", "400", "--out", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while "left: round 1" not in (line := running.stderr.readline()):
            assert line, "the run ended before it had measured anything"
        running.send_signal(signal.SIGINT)  # llama.cpp's second arm has a long answer before it
        told = running.stderr.read()
    assert running.returncode == 130, told
    assert [one["arm"] for one in measurements(folder)] == ["llama.cpp, 1 thread"]
    assert f"skippy-engine bench --resume --out {folder}\n" in told
