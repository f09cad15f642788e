"""Starting the app from a command line: options, files, the terminal before and after."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engine
from engine.cli.errors import run_command
from engine.cli.options import (
    Parser,
    add_node_option,
    add_settings,
    config_file_of,
    flags_of,
    flags_with_stages,
    nodes_of,
)
from engine.config.kinds import Url
from engine.config.layers import read_config_file
from engine.config.plan import RunPlan
from engine.config.resolve import plan_to_toml, read_token, resolve_plan
from engine.config.ui import UiPlan
from engine.errors import UsageError

if TYPE_CHECKING:
    from skippy_tui.app import SkippyApp
    from skippy_tui.feed import Client
    from skippy_tui.logbook import LogBook

PROGRAM = "skippy-tui"
CHATS_FILE = "chats.db"


def main(argv: Sequence[str]) -> int:
    """Run the app; returns the exit code."""
    return run_command(PROGRAM, lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    config = config_file_of(arguments.config)
    if arguments.attach:
        _check_address(arguments.attach)
    plan, ui = resolve_plan(_flags(arguments), config, nodes_of(arguments)), _ui(arguments, config)
    if arguments.print_config:
        import tomli_w

        print(plan_to_toml(plan), tomli_w.dumps({"ui": asdict(ui)}), sep="\n", end="")
        return 0
    if arguments.demo_screens is not None:
        from skippy_tui.screenshots import write_screens

        for path in write_screens(Path(arguments.demo_screens)):
            print(path)
        return 0
    if not has_terminal():
        raise UsageError("the app needs a terminal", hint="skippy-prompt works without one")
    return _run_app(arguments, plan, ui)


def has_terminal() -> bool:
    """Whether somebody can see a screen and press keys."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ui(arguments: argparse.Namespace, config: Path | None) -> UiPlan:
    ui = read_config_file(config).ui if config is not None else UiPlan()
    return replace(ui, theme=arguments.theme) if arguments.theme else ui


def _run_app(arguments: argparse.Namespace, plan: RunPlan, ui: UiPlan) -> int:
    # Only now: none of this is needed for --help, --print-config or a wrong call.
    # What cannot work is told where it was asked for, not on a screen that opens.
    from skippy_tui.preflight import check_engine, check_plan

    if arguments.attach:
        check_engine(arguments.attach, _attach_token(arguments))
    else:
        check_plan(plan)
    from engine.model.paths import config_dir, data_dir, log_dir
    from skippy_tui.app import SkippyApp
    from skippy_tui.logbook import LogBook
    from skippy_tui.store import Store
    from skippy_tui.themes import load_themes, shipped_themes

    engine_log = None if arguments.attach else log_dir() / "engine.log"
    logbook = LogBook(log_dir() / "tui.log")
    app = SkippyApp(
        plan,
        _connect(arguments),
        Store(data_dir() / CHATS_FILE),
        load_themes([shipped_themes(), config_dir() / "themes"]),
        logbook=logbook,
        engine_log=engine_log,
        ui=ui,
        attached=bool(arguments.attach),
    )
    return run_in_terminal(app, logbook)


def run_in_terminal(app: SkippyApp, logbook: LogBook) -> int:
    """Run the app with native output led away; returns the exit code.

    Raises what ended the app, once the screen is back.
    """
    from skippy_tui.native import NativeOutput

    with NativeOutput(lambda line: logbook.add("native", line)):
        app.run()
    if app.fault is not None:
        raise app.fault
    return app.return_code or 0


def _connect(arguments: argparse.Namespace) -> Callable[[RunPlan], Client]:
    from engine.client.client import EngineClient, LocalEngine, RunningEngine
    from engine.model.paths import log_dir

    if arguments.attach:
        running = RunningEngine(arguments.attach, _attach_token(arguments))
        return lambda plan: EngineClient(running)
    return lambda plan: EngineClient(LocalEngine(plan, log_dir() / "engine.log"))


def _check_address(url: str) -> None:
    """Raise UsageError for what is no address."""
    from engine.transport.addresses import parse_url

    try:
        parse_url(Url().check(url))
    except ValueError as error:
        raise UsageError(
            f"--attach {error}", hint="write it as skippy-engine serve prints it, ws://127.0.0.1:PORT"
        ) from None


def _attach_token(arguments: argparse.Namespace) -> str:
    return read_token(Path(arguments.token_file).expanduser()) if arguments.token_file else ""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROGRAM,
        description="Chat with a model that is cut by layers into stages, and see where every token and "
        "every millisecond went. Settings come from these flags, then from skippy.toml.",
        epilog="skippy-tui --engine-only ... serves layers without a user interface; see its --help.",
    )
    parser.add_argument("--version", action="version", version=f"skippy {engine.__version__}")
    screen = parser.add_argument_group("the app")
    screen.add_argument("--theme", metavar="NAME", help="theme to begin with (default: the last one)")
    screen.add_argument("--attach", metavar="ws://HOST:PORT", help="use an engine that runs already")
    screen.add_argument("--demo-screens", metavar="DIR", help="write every screen as SVG and stop")
    config = parser.add_argument_group("configuration")
    config.add_argument("--config", metavar="FILE", help="another skippy.toml")
    config.add_argument("--print-config", action="store_true", help="show the resolved plan as TOML and stop")
    config.add_argument("--topology", metavar="FILE", help="TOML file with [[stages]], instead of --stage")
    add_node_option(config)
    config.add_argument(
        "--token-file", metavar="FILE", help="file with the token of stages, nodes, or the engine of --attach"
    )
    add_settings(parser)
    return parser


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of the call, stages of `--topology` and their token included."""
    if arguments.attach:
        return flags_of(arguments)
    return flags_with_stages(
        arguments, token_needs="--stage, --node, --topology or --attach", token_hint="local stages need none"
    )
