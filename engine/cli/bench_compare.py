"""`skippy-engine bench --compare`: whether two runs agree."""

from __future__ import annotations

import argparse
from pathlib import Path

import orjson

from engine.bench.comparison import Run, compare


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare the results that two runs have left in their folders. Raises SkippyError."""
    first, second = (Run.read(Path(folder).expanduser()) for folder in arguments.compare)
    comparison = compare(first, second)
    if arguments.json:
        print(orjson.dumps(comparison.to_json()).decode())
    else:
        print(comparison.to_markdown())
    return 0
