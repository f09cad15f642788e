"""The options of `skippy-engine plan`."""

from __future__ import annotations

import argparse

from engine.cli.options import Parser, add_node_option, add_setting
from engine.config.settings import SETTINGS
from engine.errors import UsageError

_SETTINGS = (
    "stages",
    "wire",
    "tls_ca",
    "threads",
    "gpu_layers",
    "context",
    "sequences",
    "prefill_rows",
    "strategy",
    "draft_max",
)


def add_plan(tools: argparse._SubParsersAction[Parser]) -> None:
    """`plan`: how many stages, where, which layers."""
    parser = tools.add_parser("plan", help="which machine should serve which layers, and how fast that is")
    parser.add_argument("model", metavar="MODEL", help="demo, a [models.NAME], a GGUF file or a package")
    parser.add_argument("--nodes", metavar="FILE", help="file with [[nodes]] (default: those of skippy.toml)")
    add_node_option(parser)
    parser.add_argument("--token-file", metavar="FILE", help="file with the token of the nodes of --node")
    parser.add_argument(
        "--emulate", metavar="FILE", help="the machines of FILE instead of real ones (docs/planning.md)"
    )
    parser.add_argument(
        "--target-tpot-ms", metavar="MS", type=_positive, help="the fewest stages that reach MS per token"
    )
    parser.add_argument("--lock", metavar="FILE", help="write the plan, for --topology FILE")
    parser.add_argument("--topology", metavar="FILE", help="judge this pinned plan instead of choosing one")
    parser.add_argument(
        "--acceptance", metavar="SHARE", type=_share, help="how often a first draft is right (default 0.62)"
    )
    parser.add_argument("--prompt-tokens", metavar="N", type=_count, default=256, help="default 256")
    parser.add_argument("--answer-tokens", metavar="N", type=_count, default=128, help="default 128")
    parser.add_argument("--config", metavar="FILE", help="another skippy.toml")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    for name in _SETTINGS:
        add_setting(parser, SETTINGS[name])
    parser.set_defaults(tool=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    from engine.cli.plan import run_plan

    return run_plan(arguments)


def _number(text: str, least: float, most: float, kind: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least < value <= most:
        raise UsageError(f"{text!r} is not {kind}")
    return value


def _positive(text: str) -> float:
    return _number(text, 0.0, 1e9, "a number above 0")


def _share(text: str) -> float:
    return _number(text, 0.0, 1.0, "a share above 0 and up to 1")


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 1 << 20:
        raise UsageError(f"{text!r} is not a number of tokens from 1 to {1 << 20}")
    return int(text)
