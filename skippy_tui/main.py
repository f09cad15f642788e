"""`skippy-tui`: the chat application, or with `--engine-only` a headless stage that never loads Textual."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from engine.cli.errors import run_command

PROGRAM = "skippy-tui"
ENGINE_ONLY = "--engine-only"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if ENGINE_ONLY in arguments:
        arguments.remove(ENGINE_ONLY)
        from engine.cli.stage_options import stage_main

        return stage_main(arguments, f"{PROGRAM} {ENGINE_ONLY}")
    return run_command(PROGRAM, lambda: _run_app(arguments))


def _run_app(arguments: Sequence[str]) -> int:
    from engine.cli.stage_options import refuse_stage_flags
    from skippy_tui.launch import main as app_main

    refuse_stage_flags(arguments, ENGINE_ONLY)
    return app_main(arguments)


if __name__ == "__main__":
    sys.exit(main())
