"""What is imported when, and by whom: looked at in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_after(code: str, *arguments: str) -> set[str]:
    """The top-level packages that a fresh process has loaded after running `code`."""
    report = (
        "import atexit, sys\n"
        "packages = lambda: sorted({name.partition('.')[0] for name in sys.modules})\n"
        "atexit.register(lambda: print('loaded', *packages(), file=sys.stderr))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", report + code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    line = done.stderr.splitlines()[-1] if done.stderr else ""
    assert line.startswith("loaded "), f"the process ended otherwise: {done.stderr}"
    return set(line.split()[1:])


EVERY_MODULE = """
import importlib, pkgutil, engine
for module in pkgutil.walk_packages(engine.__path__, "engine."):
    importlib.import_module(module.name)
"""


def test_nothing_in_the_engine_loads_textual() -> None:
    loaded = modules_after(EVERY_MODULE)
    assert {"engine", "gguf", "websockets"} <= loaded
    assert not {"textual", "rich", "skippy_tui"} & loaded


def test_a_headless_stage_never_loads_textual() -> None:
    code = "import sys; from skippy_tui.main import main; sys.exit(main(sys.argv[1:]))"
    loaded = modules_after(code, "--engine-only", "--model", "/no/such.gguf", "--layers", "0:1")
    assert {"skippy_tui", "llama_cpp"} <= loaded  # it went as far as it does before it serves
    assert not {"textual", "rich", "prompt_toolkit"} & loaded


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("engine.cli.prompt", ["--help"]),
        ("engine.cli.prompt", ["--print-config"]),
        ("engine.cli.main", ["--help"]),
        ("engine.cli.main", ["stage", "--help"]),
        ("engine.cli.main", ["where"]),
    ],
)
def test_quick_answers_load_nothing_heavy(module: str, arguments: list[str]) -> None:
    code = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
    loaded = modules_after(code, *arguments)
    assert not {"numpy", "llama_cpp", "gguf", "textual", "websockets", "prompt_toolkit", "jinja2"} & loaded


def test_front_ends_load_no_llama_cpp() -> None:
    loaded = modules_after("import engine.cli.one_shot, engine.cli.repl, engine.cli.prompt")
    assert {"websockets", "prompt_toolkit"} <= loaded
    assert not {"llama_cpp", "numpy", "gguf", "textual"} & loaded


@pytest.mark.parametrize(
    "program",
    [
        "engine.coordinator.process",
        "engine.stage.process",
        "engine.cli.stage",
        "engine.cli.verify",
        "engine.cli.bench",
        "engine.bench.traced",
    ],
)
def test_programs_that_compute_load_llama_cpp_before_numpy(program: str) -> None:
    """With CUDA it would crash otherwise, and no machine that runs these tests would show it."""
    code = f"import sys, {program}\nloaded = list(sys.modules)\n"
    assert modules_after(code + "assert loaded.index('llama_cpp') < loaded.index('numpy')")


def test_the_layers_of_the_design_hold() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
