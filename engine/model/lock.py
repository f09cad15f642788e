"""A lock file between processes. The system drops the lock when its holder dies: none is ever left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.05

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: BinaryIO) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _share_lock(file: BinaryIO) -> None:
        pass  # a file that is open cannot be deleted here, so nobody has to be kept from it

else:
    import fcntl

    def _try_lock(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _share_lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_SH)


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`. `waiting` is called between attempts and may raise to give up.

    Two threads of one process exclude each other too. Raises OSError where the file cannot be made.
    """
    with path.open("ab") as file:
        while not _try_lock(file):
            waiting()
            time.sleep(POLL_SECONDS)
        yield


@contextmanager
def locked_with_others(path: Path) -> Iterator[None]:
    """Hold the lock file `path` together with all who hold it like this; waits for one who holds it alone."""
    with path.open("ab") as file:
        _share_lock(file)
        yield


@contextmanager
def locked_now(path: Path) -> Iterator[bool]:
    """Try once: yields whether the lock is held."""
    with path.open("ab") as file:
        yield _try_lock(file)
