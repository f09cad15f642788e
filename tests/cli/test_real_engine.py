"""`skippy-prompt` with the real engine and the default model in two local stages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client.client import EngineClient, RunningEngine
from engine.errors import Unauthorized
from engine.events import EngineState
from engine.model.paths import cache_dir
from tests.cli.programs import PATIENCE, Terminal, environment

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPT = (sys.executable, "-m", "engine.cli.prompt", "--split", "15", "--threads", "1", "--ctx", "512")
SENTENCE = "Repeat this: red green blue red green blue red green blue"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of its own that shares the slices and the default model of the user's cache."""
    (tmp_path / "cache").mkdir()
    shared = cache_dir()
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "skippy").symlink_to(shared)
    return tmp_path


def answer(home: Path, *arguments: str) -> tuple[int, dict[str, object], str]:
    done = subprocess.run(
        [*PROMPT, "--json", *arguments],
        capture_output=True,
        text=True,
        env=environment(home),
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_json_holds_all_fields_and_speculation_changes_no_token(home: Path) -> None:
    code, plain, stderr = answer(home, "--strategy", "disabled", "--max-tokens", "24", SENTENCE)
    assert (code, stderr) == (0, "")
    code, drafted, stderr = answer(
        home, "--strategy", "mtp-suffix", "--window-policy", "adaptive", "--max-tokens", "24", SENTENCE
    )
    assert (code, stderr) == (0, "")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["text"] == plain["text"] != ""
    assert (drafted["strategy"], drafted["exact"]) == ("mtp-suffix", True)
    assert set(drafted) >= {
        *("text", "token_ids", "finish_reason", "model", "strategy", "exact", "timings"),
        *("speculative", "stages", "events", "events_dropped"),
    }
    speculative, stages = drafted["speculative"], drafted["stages"]
    assert isinstance(speculative, dict)
    assert isinstance(stages, list)
    assert speculative["proposed"] > 0
    assert [stage["layers"] for stage in stages] == [[0, 15], [15, 30]]


def test_a_wrong_cut_is_a_usage_error_of_one_line(home: Path) -> None:
    done = subprocess.run(
        [*PROMPT[:3], "--split", "99", "x"],
        capture_output=True,
        text=True,
        env=environment(home),
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--split 99" in done.stderr


def test_ctrl_c_keeps_the_answer_and_no_process_stays_behind(home: Path) -> None:
    process = subprocess.Popen(
        [*PROMPT, "--json", "--log-format", "json", "--max-tokens", "400", "Tell me a very long story."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    )
    assert process.stderr is not None
    stages: set[int] = set()
    while (event := json.loads(process.stderr.readline()))["kind"] != "tokens":
        if event["kind"] == "stage" and event["pid"]:
            stages.add(event["pid"])
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    result = json.loads(stdout)
    assert process.returncode == 130
    assert result["finish_reason"] == "cancelled"
    assert result["text"]
    assert stages
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in stages):
        assert time.monotonic() < deadline, "a stage outlived its engine"
        time.sleep(0.05)


@pytest.fixture
def repl(home: Path) -> Iterator[Terminal]:
    terminal = Terminal([*PROMPT, "--max-tokens", "8"], home)
    yield terminal
    terminal.close()


def test_a_second_turn_reuses_the_first(repl: Terminal) -> None:
    repl.expect(":help lists", "\x1b[?2004h")
    repl.type("What is two and two?\r")
    repl.expect("tokens  ", "\x1b[?2004h")
    repl.type("And three and three?\r")
    repl.expect("tokens  ", "prompt tokens were in the caches", "\x1b[?2004h")
    repl.type(":quit\r")
    assert repl.wait() == 0


async def test_an_engine_that_is_served_can_be_attached_to_until_ctrl_c(home: Path) -> None:
    command = (sys.executable, "-m", "engine.cli.main", "serve", "--stages", "1", "--threads", "1")
    process = subprocess.Popen(
        [*command, "--ctx", "512"], stdout=subprocess.PIPE, text=True, env=environment(home), cwd=home
    )
    try:
        assert process.stdout is not None
        word, url, label, token_file, *_ = process.stdout.readline().split()
        assert (word, label) == ("ready", "token-file")
        assert Path(token_file).stat().st_mode & 0o077 == 0
        token = Path(token_file).read_text().strip()
        async with EngineClient(RunningEngine(url, token)) as client:
            states = [event.state async for event in first_states(client)]
        assert states[-1] == "ready"
        with pytest.raises(Unauthorized):
            await EngineClient(RunningEngine(url, "another")).open()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


async def first_states(client: EngineClient) -> AsyncIterator[EngineState]:
    async for event in client.events():
        if isinstance(event, EngineState):
            yield event
            if event.state in ("ready", "failed"):
                return
