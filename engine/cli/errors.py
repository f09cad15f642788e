"""The one place that owns a command's exit code and its last line on standard error. Never a traceback."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from engine.client.sanitize import one_line
from engine.errors import EXIT_FAILED, EXIT_INTERRUPTED, SkippyError

# What a machine may refuse at any time without a fault of ours.
_REFUSALS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}
)


class Interrupted(SkippyError):
    """The person pressed Ctrl+C."""

    code = "interrupted"
    exit_code = EXIT_INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted")


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code, whatever happens in it."""
    # The exit code stands: a Ctrl+C while Python shuts down must not turn it into death by signal.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        code = command()
        sys.stdout.flush()
        return code
    except SkippyError as error:
        print_error(program, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error(program, str(Interrupted()))
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough.
        _discard(1)
        return EXIT_FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _REFUSALS:
            _discard(1)
            what = f"use {error.filename}" if error.filename else "write the output"
            print_error(program, f"cannot {what}: {error.strerror}")
        else:
            print_error(
                program, f"{type(error).__name__}: {error}; this is a fault of ours{_record(program)}"
            )
        return EXIT_FAILED


def print_error(program: str, text: str) -> None:
    """One line on standard error, even when that is closed."""
    try:
        erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # a line of progress may stand there
        print(f"{erase}{program}: {one_line(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _discard(2)


def _discard(descriptor: int) -> None:
    """Write no more there: Python would complain of what is left, and change the exit code, when it ends."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _record(program: str) -> str:
    """Keep the traceback of the exception being handled where it can be found; says where, if that worked."""
    from engine.model.paths import log_dir

    path = log_dir() / "errors.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {program}\n{traceback.format_exc()}\n")
    except OSError:
        return ""
    return f", its details are in {path}"
