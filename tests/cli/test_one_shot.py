"""`skippy-prompt PROMPT`: what it writes where, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli.prompt import main
from tests.cli.conftest import OpenTerminal
from tests.cli.programs import FAKE_COMMAND, PROMPT, environment, run


@dataclass(frozen=True)
class Done:
    """What a call wrote, and how it ended."""

    stdout: str
    stderr: str
    returncode: int


@pytest.fixture
def prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Calls `skippy-prompt` in this process; its engine is a process of its own."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        code = main(arguments, FAKE_COMMAND)
        written = capsys.readouterr()
        return Done(written.out, written.err, code)

    return call


def test_the_answer_and_nothing_else_is_on_standard_output(tmp_path: Path) -> None:
    done = run([*PROMPT, "one two three"], tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("one two three\n", "", 0)


def test_a_prompt_can_come_from_standard_input(tmp_path: Path) -> None:
    done = run(PROMPT, tmp_path, stdin="from a pipe\n")
    assert (done.stdout, done.returncode) == ("from a pipe\n", 0)


def test_json_is_one_object_with_the_result_of_the_engine(prompt: Callable[..., Done]) -> None:
    done = prompt("--json", "--strategy", "mtp", "--temperature", "0.5", "a b")
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert (result["text"], result["token_ids"], result["finish_reason"]) == ("a b", [0, 1], "stop")
    assert result["settings"]["strategy"] == "mtp"
    assert result["settings"]["temperature"] == 0.5


def test_limits_and_stops_are_passed_on(prompt: Callable[..., Done]) -> None:
    done = prompt("--max-tokens", "2", "--json", "a b c d")
    result = json.loads(done.stdout)
    assert (result["text"], result["finish_reason"]) == ("a b", "length")


def test_a_system_message_comes_before_the_prompt_unless_raw(
    tmp_path: Path, prompt: Callable[..., Done]
) -> None:
    chat = json.loads(prompt("--system", "be brief", "--json", "hello").stdout)
    raw = json.loads(prompt("--system", "be brief", "--raw", "--json", "hello").stdout)
    assert (chat["timings"]["prompt_n"], raw["timings"]["prompt_n"]) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "refused", "x"], 2, "there is no such model; try demo"),
        (["--model", "crash", "x"], 1, "ended with code 1 (RuntimeError: out of paper); see "),
        (["--model", "failing", "x"], 1, "the model is broken; try another one"),
        (["refuse"], 1, "the prompt is too long; shorten it"),
        (["misuse"], 2, "the prompt is too long; shorten it"),
        (["--window-min", "0", "x"], 2, "--window-min must be a whole number between 1 and 256"),
        (["--widnow-min", "2", "x"], 2, "did you mean --window-min?"),
        (["--zzz", "x"], 2, "unknown option --zzz; skippy-prompt --help lists what there is"),
        (["Why", "is", "the", "sky"], 2, "'is' is one word too many; the prompt must be in quotes"),
        (["--strategy"], 2, "expected one argument"),
        (["   "], 2, "the prompt is empty"),
        (["--topology", "none.toml", "x"], 2, "cannot read none.toml"),
        (["--token-file", "none", "x"], 2, "--token-file needs --stage"),
    ],
)
def test_a_failure_is_one_line_with_the_next_step(
    prompt: Callable[..., Done], arguments: list[str], code: int, words: str
) -> None:
    done = prompt(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_engine_that_is_lost_again_and_again_is_given_up(prompt: Callable[..., Done]) -> None:
    done = prompt("now die")
    assert done.returncode == 1
    assert done.stdout == "now\n"
    *warnings, error = done.stderr.splitlines()
    assert "the engine was killed by signal 9; see " in error
    assert len(warnings) == 3
    assert all("it is started again" in line for line in warnings)
    assert done.stderr.startswith("skippy-prompt: ")


def test_an_unexpected_fault_is_one_line_and_its_traceback_is_in_a_file(tmp_path: Path) -> None:
    fault = "import sys, engine.cli.prompt as p; p.resolve_plan = None; sys.exit(p.main(['x']))"
    done = run([PROMPT[0], "-c", fault], tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    log = Path(done.stderr.rpartition(" ")[2].strip())
    assert "Traceback" in log.read_text()


def test_an_engine_that_dies_again_and_again_is_given_up_and_the_partial_answer_kept(
    prompt: Callable[..., Done],
) -> None:
    done = prompt("now die")
    *warnings, last = done.stderr.splitlines()
    assert (done.stdout, done.returncode) == ("now\n", 1)
    assert all(line.startswith("skippy-prompt: warning: the engine was killed") for line in warnings)
    assert last.startswith("skippy-prompt: the engine was killed by signal 9; see ")


def test_json_of_a_lost_engine_holds_what_was_received(prompt: Callable[..., Done]) -> None:
    done = prompt("--json", "one two die")
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert (result["text"], result["finish_reason"]) == ("one two", "error")
    assert result["error"]["code"] == "engine-lost"
    assert "killed by signal 9" in done.stderr


def test_standard_input_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        PROMPT, input=b"ab\xff", capture_output=True, env=environment(tmp_path), timeout=30, check=False
    )
    assert done.returncode == 2
    assert b"byte 2 cannot be read" in done.stderr


def test_a_closed_pipe_is_quiet_and_ends_the_answer(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROMPT, "--max-tokens", "1000000", "endless"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(4) == b"word"
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_events_can_be_logged_as_json(prompt: Callable[..., Done]) -> None:
    done = prompt("--log-format", "json", "one warn")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    kinds = {event["kind"] for event in events}
    assert {"engine", "model", "stage", "request", "window", "window-done", "tokens", "finished"} <= kinds
    assert [event["message"] for event in events if event["kind"] == "notice"] == ["a fallback"]


def test_the_level_of_the_log_leaves_windows_out(prompt: Callable[..., Done]) -> None:
    done = prompt("--log-level", "info", "one")
    kinds = {line.split()[1] for line in done.stderr.splitlines()}
    assert kinds == {"engine", "model", "stage", "request", "prefill", "finished"}


def test_the_log_for_people_ends_with_the_few_figures_of_an_answer(prompt: Callable[..., Done]) -> None:
    done = prompt("--log-format", "pretty", "one two")
    last = done.stderr.splitlines()[-1].split()
    assert last[1] == "finished"
    assert last[3:] == ["finish_reason=stop", "tokens=2", "tok/s=42.0"]


def test_warnings_and_notes_are_shown_without_a_log(prompt: Callable[..., Done]) -> None:
    done = prompt("--model", "noted", "one warn")
    assert done.stderr == "skippy-prompt: note: this is a fake\nskippy-prompt: warning: a fallback\n"


def test_print_config_reads_back_as_it_was_printed(tmp_path: Path, prompt: Callable[..., Done]) -> None:
    first = prompt("--print-config", "--split", "9,20", "--stop", "END", "--exact")
    assert first.returncode == 0
    (tmp_path / "again.toml").write_text(first.stdout)
    assert prompt("--config", "again.toml", "--print-config").stdout == first.stdout


def test_the_own_configuration_of_the_user_is_read(tmp_path: Path, prompt: Callable[..., Done]) -> None:
    folder = tmp_path / "config" / "skippy"
    folder.mkdir(parents=True)
    (folder / "skippy.toml").write_text("[defaults.generation]\nmax_tokens = 1\n")
    assert prompt("one two").stdout == "one\n"
    assert prompt("--max-tokens", "9", "one two").stdout == "one two\n"


def test_ctrl_c_keeps_the_partial_answer_and_ends_with_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROMPT, "--json", "--max-tokens", "1000000", "--log-format", "json", "endless"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stderr is not None
    while b'"window-done"' not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    result = json.loads(stdout)
    assert process.returncode == 130
    assert result["finish_reason"] == "cancelled"
    assert result["text"].startswith("word")
    assert b"Traceback" not in stderr


def test_ctrl_c_while_the_engine_starts_ends_with_130_and_leaves_no_engine(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROMPT, "--model", "silent", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text().split()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, b"skippy-prompt: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(child[0]), 0)


def children_of(pid: int) -> list[str]:
    """The processes that a process started."""
    return subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout.split()


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROMPT, "--log-format", "json", "first hang"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stderr is not None
    while b'"tokens"' not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    # The engine hangs, so the cancel is never answered; the first Ctrl+C has been taken once this is sent.
    os.set_blocking(process.stderr.fileno(), False)
    (engine,) = (int(pid) for pid in children_of(process.pid))
    # Signals that come too close together are one signal; nobody presses faster than this.
    while process.returncode is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    os.kill(engine, signal.SIGKILL)  # it has stopped itself, so it does not see its parent end
    assert process.returncode == 130
    process.communicate()


def test_a_terminal_shows_control_sequences_instead_of_obeying_them(terminal: OpenTerminal) -> None:
    screen = terminal("\x1b]52;c;aGk=\x07 \x9b2J end")
    assert screen.wait() == 0
    assert "␛]52;c;aGk=␇ <9b>2J end\r\n" in screen.seen
    assert "\x1b]52" not in screen.seen
    assert "\x9b" not in screen.seen


def test_a_pipe_gets_the_answer_as_it_is(tmp_path: Path) -> None:
    assert run([*PROMPT, "\x1b]52;c;x\x07"], tmp_path).stdout == "\x1b]52;c;x\x07\n"


def test_a_terminal_sees_what_is_awaited_and_the_line_goes_away(terminal: OpenTerminal) -> None:
    screen = terminal("hello there")
    assert screen.wait() == 0
    before, _, after = screen.seen.partition("reading the model 50%")
    assert before == "\r\x1b[K"
    assert after == "\r\x1b[Khello there\r\n"


WARNING = "skippy-prompt: warning: a fallback\r\n"


def test_a_warning_in_mid_answer_is_a_line_of_its_own_on_the_terminal(terminal: OpenTerminal) -> None:
    screen = terminal("one warn")
    assert screen.wait() == 0
    assert screen.seen.endswith(f"one\r\n{WARNING} warn\r\n")


def test_a_warning_between_lines_or_at_the_end_leaves_no_empty_line(terminal: OpenTerminal) -> None:
    screen = terminal("--max-tokens", "1", "one\n warn warn")
    assert screen.wait() == 0
    assert screen.seen.endswith("one\r\n")
    screen = terminal("one\nwarn warn")
    assert screen.wait() == 0
    assert screen.seen.endswith(f"one\r\nwarn\r\n{WARNING} warn\r\n")
    screen = terminal("warn die")
    assert screen.wait() == 1
    assert "\r\n\r\n" not in screen.seen.replace("\r\x1b[K", "")
    assert f"{WARNING}warn\r\n" in screen.seen


def test_a_warning_adds_nothing_to_an_answer_that_goes_elsewhere(tmp_path: Path) -> None:
    done = run([*PROMPT, "one warn"], tmp_path)
    assert (done.stdout, done.stderr) == ("one warn\n", WARNING.replace("\r", ""))


def test_an_engine_that_does_not_stop_is_told_below_the_answer(terminal: OpenTerminal) -> None:
    screen = terminal("first hang")
    screen.expect("first")
    screen.type("\x03")
    assert screen.wait() == 130
    assert "first^C\r\n" in screen.seen
    assert screen.seen.endswith("skippy-prompt: interrupted\r\n")


@pytest.mark.parametrize("arguments", [["one two"], ["--json", "one two"], ["--print-config"]])
def test_a_full_disk_is_one_line(tmp_path: Path, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROMPT, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
            timeout=30,
            check=False,
        )
    line = b"skippy-prompt: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_a_terminal_that_goes_away_ends_the_answer(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with open(tmp_path / "errors", "wb") as errors:
        process = subprocess.Popen(
            [*PROMPT, "--max-tokens", "1000000", "endless"],
            stdout=theirs,
            stderr=errors,
            env=environment(tmp_path),
        )
    os.close(theirs)
    assert os.read(ours, 4) == b"word"
    os.close(ours)
    assert process.wait(30) == 1
    line = "skippy-prompt: cannot write the output: Input/output error\n"
    assert (tmp_path / "errors").read_text() == line


def test_without_any_terminal_left_the_exit_code_stands(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROMPT, "--max-tokens", "1000000", "endless"],
        stdout=theirs,
        stderr=theirs,
        env=environment(tmp_path),
    )
    os.close(theirs)
    while b"word" not in os.read(ours, 4096):
        pass
    os.close(ours)
    assert process.wait(30) == 1
