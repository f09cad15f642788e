"""The options with which a run of the bench began: its record keeps them, so nobody has to repeat them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from engine.cli.bench_options import add_bench_options
from engine.cli.options import Parser

_OF_EACH_CALL = ("out", "resume", "report", "json", "write")
"""What says nothing of what is measured."""


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the call says about what is measured, by the name of the option."""
    values, defaults = vars(arguments), _defaults()
    names = defaults.keys() - set(_OF_EACH_CALL)
    return {name: values[name] for name in sorted(names) if values[name] != defaults[name]}


def with_recorded(arguments: argparse.Namespace, recorded: Mapping[str, Any]) -> argparse.Namespace:
    """The call, with what a run began with where it says nothing."""
    unsaid = {name: recorded[name] for name in recorded.keys() - given_options(arguments).keys()}
    return argparse.Namespace(**{**vars(arguments), **unsaid})


def _defaults() -> dict[str, Any]:
    parser = Parser()
    add_bench_options(parser)
    return vars(parser.parse_args([]))
