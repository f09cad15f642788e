"""The options of `skippy-engine package`, apart from what it does, so that `--help` is quick."""

from __future__ import annotations

import argparse

from engine.cli.options import Parser, add_setting
from engine.config.package_speculation import NOT_IN_PACKAGES
from engine.config.settings import settings_of

RECOMMENDED = tuple(
    setting
    for setting in settings_of("speculative")
    if setting.name == "strategy" or setting.name not in NOT_IN_PACKAGES
)
"""Settings that a package can recommend."""


def add_package(tools: argparse._SubParsersAction[Parser]) -> None:
    """The tool and its options."""
    parser = tools.add_parser(
        "package",
        usage="skippy-engine package MODEL --splits N[,N...] --out DIR [SETTINGS]\n"
        "       skippy-engine package --check DIR [--partial] [--json]",
        help="cut a model into a folder of slices, or check such a folder",
        description="Cut a model once, so that every machine can hold its own part and nothing else.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="demo, a GGUF file, or another package")
    parser.add_argument("--splits", metavar="N[,N...]", help="first layers of the slices after the first")
    parser.add_argument("--out", metavar="DIR", help="the folder to make")
    parser.add_argument("--check", metavar="DIR", help="check a package: manifest, files, hashes, headers")
    parser.add_argument(
        "--partial",
        action="store_true",
        help="with --check: files that are not on this machine are no problem",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    settings = parser.add_argument_group("settings that the package recommends to whoever runs it")
    for setting in RECOMMENDED:
        add_setting(settings, setting)
    parser.set_defaults(tool=_package)


def _package(arguments: argparse.Namespace) -> int:
    from engine.cli.package import run_package

    return run_package(arguments)
