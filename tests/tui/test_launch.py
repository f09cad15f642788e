"""Starting from a command line, and documents that must not drift from the table of commands."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import orjson
import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from engine.events import EngineState
from skippy_tui import launch
from skippy_tui.app import SkippyApp
from skippy_tui.commands import COMMANDS
from skippy_tui.launch import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A terminal; holds `opened` for each screen that did."""
    opened: list[str] = []
    monkeypatch.setattr(launch, "has_terminal", lambda: True)
    monkeypatch.setattr(SkippyApp, "run", lambda app: opened.append("opened"))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return opened


def test_without_a_terminal_it_says_what_works_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "skippy-prompt works without one" in error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--thme", "paper"], "did you mean --theme"),
        (["--token-file", "x"], "--attach"),
        (["--stages", "none"], "must be a whole number"),
        (["--attach", "127.0.0.1:9500"], "must begin with ws:// or wss://"),
        (["--attach", "ws://127.0.0.1:0"], "port 0"),
    ],
)
def test_wrong_calls_are_one_line(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--model", "nofile.gguf"], 1, "nofile.gguf does not exist; give a .gguf file"),
        (["--stages", "40"], 2, "--stages 40 is not possible"),
        (["--split", "40"], 2, "--split 40 does not cut"),
    ],
)
def test_settings_that_cannot_work_are_one_line_before_the_screen_opens(
    arguments: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str], terminal: list[str]
) -> None:
    assert main(arguments) == code
    error = capfd.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert terminal == []


@contextmanager
def listening(answer: str | bytes) -> Iterator[str]:
    """Something that wants the token `good` and says one thing; gives its URL."""

    def authorize(connection: ServerConnection, request: Request) -> Response | None:
        good = request.headers.get("Authorization") == "Bearer good"
        return None if good else connection.respond(HTTPStatus.UNAUTHORIZED, "")

    def say(connection: ServerConnection) -> None:
        connection.send(answer)
        connection.recv()

    with serve(say, "127.0.0.1", 0, process_request=authorize) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


ENGINE_SAYS = orjson.dumps({"events": [EngineState(at=1.0, state="ready").to_dict()]}).decode()


@pytest.mark.parametrize(
    ("says", "token", "text"),
    [
        (ENGINE_SAYS, "", "refused our token; give --token-file FILE, which skippy-engine serve prints"),
        (ENGINE_SAYS, "wrong", "refused our token; give --token-file FILE, which skippy-engine serve prints"),
        (b"a node", "good", "is no engine to attach to; give the address that skippy-engine serve prints"),
        (ENGINE_SAYS, "good", ""),
    ],
)
def test_an_engine_is_tried_before_the_screen_opens(
    says: str | bytes,
    token: str,
    text: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    terminal: list[str],
) -> None:
    (tmp_path / "token").write_text(token)
    with listening(says) as url:
        call = ["--attach", url, *(["--token-file", str(tmp_path / "token")] if token else [])]
        assert main(call) == (1 if text else 0)
    error = capfd.readouterr().err
    assert text in error
    assert error.count("\n") == bool(text)
    assert terminal == ([] if text else ["opened"])


def test_where_nothing_listens_the_next_step_is_named(
    capfd: pytest.CaptureFixture[str], terminal: list[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        assert main(["--attach", f"ws://127.0.0.1:{taken.getsockname()[1]}"]) == 1
    error = capfd.readouterr().err
    assert "skippy-engine serve starts an engine" in error
    assert error.count("\n") == 1
    assert terminal == []


def test_the_plan_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-config", "--strategy", "mtp"]) == 0
    assert 'strategy = "mtp"' in capfd.readouterr().out


def test_a_headless_stage_and_the_help_load_no_textual() -> None:
    code = (
        "import sys\nfrom skippy_tui.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "assert 'textual' not in sys.modules"
    )
    for arguments in (["--engine-only", "--help"], ["--help"], ["--print-config"]):
        subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )


def test_the_page_names_every_command_and_its_key() -> None:
    page = (ROOT / "docs" / "tui.md").read_text(encoding="utf-8").replace("\\|", "|")
    for command in COMMANDS.values():
        assert f"/{command.name}" in page
        assert command.key_shown in page


def test_a_token_file_goes_with_a_stage_and_its_standby(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    call = ["--stage", "ws://first:1,ws://spare:2", "--token-file", str(token_file), "--print-config"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from skippy_tui.launch import main; sys.exit(main(sys.argv[1:]))",
            *call,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert '"ws://first:1"' in done.stdout
    assert '"ws://spare:2"' in done.stdout
