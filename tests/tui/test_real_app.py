"""The app under tmux with the real engine and the default model in two local stages."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.model.paths import cache_dir
from tests.cli.programs import ROOT, environment

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not here"),
]

APP = (sys.executable, "-m", "skippy_tui.main", "--split", "15", "--threads", "1", "--strategy", "mtp")
# A delay makes the answer slow enough to do things meanwhile, on a fast machine too.
SLOW = ("--emulate-rtt-ms", "30", "--max-tokens", "3000")
PROMPT = "Write a long story about a lighthouse keeper and the sea."
PATIENCE = 60.0  # seconds after which a test gives up
ENDING = 5.0  # in which processes without a parent must have ended


def own_environment(home: Path) -> dict[str, str]:
    """One in which the terminal alone says how large it is."""
    env = {**environment(home), "LANG": "C.UTF-8"}
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}


class Tmux:
    """One window of a tmux server of its own, in which a shell runs a command and stays."""

    def __init__(self, command: tuple[str, ...], home: Path) -> None:
        self._socket = str(home / "tmux")
        line = f"cd {shlex.quote(str(ROOT))} && {shlex.join(command)}; echo ended $?; exec cat"
        self._call("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", line, home=home)
        self.shell = int(self.ask("#{pane_pid}"))

    def _call(self, *arguments: str, home: Path | None = None) -> str:
        env = None if home is None else own_environment(home)
        command = ["tmux", "-u", "-S", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def ask(self, name: str) -> str:
        """A variable of the window."""
        return self._call("display-message", "-p", name).strip()

    def press(self, *keys: str) -> None:
        """Keys by their tmux names."""
        self._call("send-keys", *keys)

    def write(self, text: str) -> None:
        """A text, and Enter."""
        self._call("send-keys", "-l", text)
        self._call("send-keys", "Enter")

    def resize(self, columns: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", "40")

    @property
    def screen(self) -> str:
        return self._call("capture-pane", "-p")

    def until(self, holds: Callable[[str], bool]) -> str:
        """Wait until this is true of the screen."""
        deadline = time.monotonic() + PATIENCE
        while not holds(screen := self.screen):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        self._call("kill-server")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """The app at home in a folder of its own, with the slices and the model of the user's cache."""
    (tmp_path / "cache").mkdir()
    shared = cache_dir()
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "skippy").symlink_to(shared)
    window = Tmux((*APP, *SLOW), tmp_path)
    yield window
    window.close()


def descendants(pid: int) -> list[int]:
    """Processes below one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [process for child in map(int, children) for process in (child, *descendants(child))]


def is_running(pid: int) -> bool:
    """Whether it still does anything: one that has ended may not have been reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def tokens_in_context(screen: str) -> int:
    """As the status line has it; they grow while an answer streams."""
    found = re.search(r"ctx (\d+)/", screen)
    return int(found[1]) if found else 0


def kept_answer(home: Path) -> str:
    """The answer as the store of chats has it."""
    with sqlite3.connect(home / "data" / "skippy" / "chats.db") as base:
        ((content,),) = base.execute("SELECT content FROM turns WHERE role = 'assistant'")
    return str(content)


def test_a_chat_streams_is_resized_changes_its_strategy_stops_and_leaves_nothing(
    tmux: Tmux, tmp_path: Path
) -> None:
    tmux.until(lambda screen: "is ready" in screen)
    tmux.write(PROMPT)
    tmux.until(lambda screen: tokens_in_context(screen) > 100)
    tmux.resize(60)
    narrow = tmux.until(lambda screen: "^G panels" in screen and "speculation" not in screen)
    tmux.until(lambda screen: screen != narrow)
    tmux.resize(120)
    tmux.until(lambda screen: "speculation" in screen and tokens_in_context(screen) > 160)

    tmux.write("/strategy disabled")
    tmux.until(lambda screen: "0 drafts, 1 in flight" in screen)

    tmux.press("Escape", "n")  # tmux hands them over in one piece
    stopped = tmux.until(lambda screen: "stopped" in screen and "│ n" in screen)
    answer = kept_answer(tmp_path)
    assert len(answer) > 100
    chat = " ".join(line[:62].strip() for line in stopped.splitlines())
    assert " ".join(answer.split()[-8:]) in " ".join(chat.split())

    processes = descendants(tmux.shell)
    assert len(processes) >= 3  # the app, its engine, the other stage
    tmux.press("C-q")
    left = tmux.until(lambda screen: "ended 0" in screen)
    assert left.split() == ["ended", "0"]
    assert tmux.ask("#{alternate_on} #{mouse_any_flag} #{cursor_flag}") == "0 0 1"
    deadline = time.monotonic() + ENDING
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, [pid for pid in processes if is_running(pid)]
        time.sleep(0.05)
