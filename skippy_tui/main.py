"""`skippy-tui`: the chat application, or with `--engine-only` a headless stage that never loads Textual."""

from __future__ import annotations

import sys
from collections.abc import Sequence

PROGRAM = "skippy-tui"
ENGINE_ONLY = "--engine-only"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if ENGINE_ONLY in arguments:
        arguments.remove(ENGINE_ONLY)
        from engine.cli.main import main as engine_main

        return engine_main(["stage", *arguments], f"{PROGRAM} {ENGINE_ONLY}")
    from skippy_tui.launch import main as app_main

    return app_main(arguments)


if __name__ == "__main__":
    sys.exit(main())
