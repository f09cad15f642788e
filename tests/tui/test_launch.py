"""Starting from a command line, and documents that must not drift from the table of commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skippy_tui.commands import COMMANDS
from skippy_tui.launch import main

ROOT = Path(__file__).parents[2]


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
    ],
)
def test_wrong_calls_are_one_line(arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert text in capfd.readouterr().err


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
