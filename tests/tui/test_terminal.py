"""The app on a pseudo terminal: native output stays off the screen, and the terminal comes back as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import pytest

ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
PATIENCE = 20.0  # seconds after which a test gives up
PROGRAM = Path(__file__).with_name("terminal_app.py")


@dataclass
class Ended:
    """What a run left behind."""

    code: int
    output: bytes
    log: str
    same_terminal: bool


def run_app(mode: str, folder: Path, signal_number: int = 0, keys: bytes = b"") -> Ended:
    """Run the program on a terminal of 80x24 until it ends; once it is up, send it a signal or keys."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    log = folder / "tui.log"
    process = start_app(mode, folder, theirs)
    output = b""
    while (chunk := _read(ours, process)) is not None:
        output += chunk
        # The log shows that the app is up and has been noisy.
        if (signal_number or keys) and log.exists() and "on 2" in log.read_text():
            if signal_number:
                process.send_signal(signal_number)
            os.write(ours, keys)
            signal_number, keys = 0, b""
    same = termios.tcgetattr(theirs) == before
    os.close(theirs)
    os.close(ours)
    return Ended(process.wait(), output, log.read_text() if log.exists() else "", same)


def start_app(mode: str, folder: Path, terminal: int) -> subprocess.Popen[bytes]:
    """Run the program in a session that the terminal does not belong to: no signal tells that it is gone."""
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), mode, str(folder / "tui.log")],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    )


def _read(descriptor: int, process: subprocess.Popen[bytes]) -> bytes | None:
    """What the program wrote; None once it has ended and everything was read."""
    readable, _, _ = select.select([descriptor], [], [], 0.1)
    if readable:
        return os.read(descriptor, 65536)
    return None if process.poll() is not None else b""


@pytest.fixture(autouse=True)
def _needs_a_pty() -> None:
    if not hasattr(pty, "openpty") or sys.platform == "win32":
        pytest.skip("no pseudo terminals here")


def check_clean(ended: Ended) -> None:
    assert b"torn by native code" not in ended.output
    assert "native torn by native code on 1" in ended.log
    assert "native torn by native code on 2" in ended.log
    assert ended.output.count(ENTER_SCREEN) == ended.output.count(LEAVE_SCREEN) == 1
    assert ended.same_terminal


def test_native_output_lands_in_the_log_and_leaving_restores_the_terminal(tmp_path: Path) -> None:
    ended = run_app("leave", tmp_path)
    check_clean(ended)
    assert ended.code == 0


def test_a_crash_restores_the_terminal_and_is_one_line(tmp_path: Path) -> None:
    ended = run_app("crash", tmp_path)
    check_clean(ended)
    assert ended.code == 1
    last = ended.output.partition(LEAVE_SCREEN)[2].decode()
    assert "skippy-tui: RuntimeError: out of paper" in last
    assert "Traceback" not in last
    assert "out of paper" in (tmp_path / "skippy" / "log" / "errors.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_kill_restores_the_terminal(number: int, tmp_path: Path) -> None:
    ended = run_app("wait", tmp_path, number)
    check_clean(ended)
    assert ended.code == 0


@pytest.mark.parametrize("text", ["x", "/", "1", "before"])
def test_escape_and_a_key_in_one_piece_stop_the_answer_and_write_the_key(text: str, tmp_path: Path) -> None:
    ended = run_app("ask", tmp_path, keys=b"\x1b" + text.encode())
    check_clean(ended)
    assert ended.code == 0
    assert f"kept True, written {text}" in ended.log


def test_a_terminal_that_is_gone_ends_the_app_and_its_engine(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    app = start_app("engine", tmp_path, theirs)
    os.close(theirs)
    seen = b""
    while b"is ready" not in seen:
        seen += os.read(ours, 65536)
    children = Path(f"/proc/{app.pid}/task/{app.pid}/children").read_text().split()
    ends = [os.pidfd_open(int(child)) for child in children]
    assert ends
    os.close(ours)
    assert app.wait(PATIENCE) == 0
    for end in ends:
        assert select.select([end], [], [], PATIENCE)[0]
        os.close(end)


def test_a_kill_ends_an_app_that_hangs(tmp_path: Path) -> None:
    assert run_app("hang", tmp_path, signal.SIGTERM).code == 128 + signal.SIGTERM
