"""The options of `skippy-engine bench`. Loads nothing that computes, so that `--help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from engine.cli.options import add_setting
from engine.config.settings import SETTINGS, settings_of

_SETTINGS = (
    *("model", "stages", "split", "wire", "emulate_jitter_ms", "emulate_mbps", "emulate_seed"),
    *("threads", "exact", "gpu_layers", "context", "max_tokens", "temperature", "top_k", "top_p", "seed"),
)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """What is asked, which arms answer, how often, and where it is kept."""
    parser.add_argument(
        "--suite",
        metavar="FILE|builtin",
        default="builtin",
        help="workloads as JSON lines, SPEED-Bench's too",
    )
    parser.add_argument("--category", metavar="A[,B...]", action="append", help="only these categories")
    parser.add_argument(
        "--limit", metavar="N", type=_whole(0), default=0, help="workloads of each category (default 0: all)"
    )
    parser.add_argument(
        "--strategies",
        metavar="A[,B...]",
        action="append",
        help="besides plain decoding (default: auto,mtp,ngram-suffix,mtp-suffix, as far as the model can)",
    )
    parser.add_argument(
        "--emulate-rtt-ms",
        dest="rtts",
        metavar="MS[,MS...]",
        action="append",
        help="round trips to measure at (default 0,20,100)",
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="also llama.cpp on the whole model, plain and with native MTP, and the engine in one stage",
    )
    parser.add_argument(
        "--repeat", metavar="N", type=_whole(1), default=5, help="rounds after the warm-up (default 5)"
    )
    parser.add_argument(
        "--prefill",
        metavar="N",
        type=_whole(0),
        default=0,
        help="also time a prompt of N tokens, in plain decoding without delay (default 0: do not)",
    )
    parser.add_argument(
        "--netns",
        action="store_true",
        help="also plain decoding with the last stage in a network namespace, its packets delayed (root)",
    )
    parser.add_argument(
        "--rpc-library",
        metavar="FILE",
        help="also llama.cpp's own split, with this build of its RPC backend (docs/performance.md)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for record and report (default: a new one)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run that --out holds, with its settings"
    )
    parser.add_argument(
        "--report", action="store_true", help="measure no more: tell what the run that --out holds has so far"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--budget",
        action="store_true",
        help="instead: what each microsecond of a plain token is, in one stage and in two",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("RUN_A", "RUN_B"),
        help="instead: whether the runs in two folders agree, each ratio within the spread of the other's",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="put the tables between the marks in this Markdown file",
    )
    group = parser.add_argument_group("settings")
    for name in (*_SETTINGS, *(item.name for item in settings_of("speculative") if item.name != "strategy")):
        add_setting(group, SETTINGS[name])


def _whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is at least so much."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    read.__name__ = "number"  # argparse names it when it complains
    return read
