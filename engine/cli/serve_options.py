"""The options of `skippy-engine serve`."""

from __future__ import annotations

import argparse

from engine.cli.options import Parser, add_node_option, add_settings


def add_serve(tools: argparse._SubParsersAction[Parser]) -> None:
    """`serve`, with every setting of a run."""
    parser = tools.add_parser(
        "serve", help="run an engine for front ends to attach to: skippy-tui --attach URL"
    )
    parser.add_argument("--port", metavar="N", default="0", help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument(
        "--attach-token-file",
        metavar="FILE",
        help="token that front ends have to send; made if it is missing (default: one in the data folder)",
    )
    parser.add_argument("--config", metavar="FILE", help="another skippy.toml")
    parser.add_argument("--topology", metavar="FILE", help="TOML file with [[stages]], instead of --stage")
    add_node_option(parser)
    parser.add_argument("--token-file", metavar="FILE", help="file with the token of the stages or nodes")
    add_settings(parser)
    parser.set_defaults(tool=_serve, program=parser.prog)


def _serve(arguments: argparse.Namespace) -> int:
    from engine.cli.serve import run_serve

    return run_serve(arguments)
