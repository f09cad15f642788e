"""The options of a headless stage: `skippy-engine stage` and `skippy-tui --engine-only`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from engine.cli.errors import run_command
from engine.cli.options import Parser, add_setting, add_settings
from engine.config.settings import SETTINGS
from engine.errors import UsageError

_STAGE_SETTINGS = (
    "tls_ca",
    "threads",
    "exact",
    "gpu_layers",
    "gpu_device",
    "context",
    "sequences",
    "slice_cache_gib",
)


def add_stage_options(parser: argparse.ArgumentParser) -> None:
    """The options of a headless stage."""
    add_setting(parser, SETTINGS["model"])
    parser.add_argument(
        "--layers",
        metavar="A:B",
        help="layers A to B-1; `A:` means to the last one. Without it the machine waits for an engine that "
        "assigns it layers (--node in front)",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:0",
        help="default 127.0.0.1:0, port 0 picks a free one",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that callers have to send (default: $SKIPPY_TOKEN)",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve wss:// with this certificate (PEM)")
    parser.add_argument("--tls-key", metavar="FILE", help="and this private key (PEM)")
    parser.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine without a token: for anybody"
    )
    for name in _STAGE_SETTINGS:
        add_setting(parser, SETTINGS[name])
    waiting = parser.add_argument_group("while it waits for layers")
    waiting.add_argument(
        "--accept-slices",
        action=argparse.BooleanOptionalAction,
        help="engines may send layers that this machine has no copy of (default: yes; with --insecure no)",
    )
    waiting.add_argument(
        "--models",
        metavar="DIR",
        action="append",
        default=[],
        help="folder with model files to cut layers from, searched with all folders below it; repeatable",
    )
    waiting.add_argument(
        "--stage-port", metavar="PORT", type=int, default=0, help="where the layers are served (default: any)"
    )


def add_stage(tools: argparse._SubParsersAction[Parser]) -> None:
    """`stage`, of `skippy-engine`."""
    parser = tools.add_parser("stage", help="serve layers of a model until it is told to stop")
    add_stage_options(parser)
    parser.set_defaults(tool=_stage)


def _stage(arguments: argparse.Namespace) -> int:
    from engine.cli.stage import run_stage

    return run_stage(arguments)


def stage_main(argv: Sequence[str], program: str) -> int:
    """Entry point of a stage that is a command of its own, called `program`."""
    parser = Parser(prog=program, description="Serve layers of a model until it is told to stop.")
    add_stage_options(parser)
    return run_command(program, lambda: _stage(parser.parse_args(argv)))


def refuse_stage_flags(argv: Sequence[str], needed: str) -> None:
    """Raise UsageError for a flag that only a stage has; `needed` is the one that makes a call a stage."""
    stage, others = Parser(), Parser()
    add_stage_options(stage)
    add_settings(others)
    others.add_argument("--token-file")
    own = stage._option_string_actions.keys() - others._option_string_actions
    for word in argv:
        if (flag := word.partition("=")[0]) in own:
            raise UsageError(f"{flag} goes with {needed}", hint="without it, the app starts")
