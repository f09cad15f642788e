"""Fuzz one target with coverage: `python -m tests.fuzz.run_atheris codec [--seconds 60]`.

Needs `pip install atheris`. It starts from the corpus; an input that fails is written to the current folder:
move it into tests/fuzz/corpus/TARGET, where the tests try it from then on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["engine.protocol", "engine.model.header"]):
    from tests.fuzz.targets import CORPUS, TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as found:  # libFuzzer adds what it finds to the first folder
        options = [
            f"-max_total_time={arguments.seconds}",
            "-max_len=8192",
            "-timeout=10",
            "-rss_limit_mb=2048",
        ]
        folders = [found, str(CORPUS / arguments.target)]
        atheris.Setup([sys.argv[0], *options, *folders], TARGETS[arguments.target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
