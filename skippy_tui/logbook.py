"""Lines of the log panel: native output, notices, and what the engine writes to its own log file."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.client.sanitize import visible

LINES_KEPT = 5000
FILE_LIMIT = 4 << 20  # bytes after which a new file is begun; one old one is kept
TAIL_BYTES = 64 << 10  # of the engine's log that is shown when the panel opens


@dataclass(frozen=True, slots=True)
class LogLine:
    """`source`: app | native | engine | notice."""

    clock: str
    source: str
    text: str


class LogBook:
    """The newest lines, also kept in a file. Lines may come from any thread."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._lines: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self._lock = threading.Lock()
        self.count = 0  # of all lines ever
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > FILE_LIMIT:
                path.replace(path.with_suffix(".old.log"))

    def add(self, source: str, text: str) -> None:
        """Keep a line. Lines of the engine stand in its own file already."""
        clock = time.strftime("%H:%M:%S", time.localtime(self._clock()))
        line = LogLine(clock, source, visible(text))
        with self._lock:
            self._lines.append(line)
            self.count += 1
            if self.path is not None and source != "engine":
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(f"{clock} {source} {line.text}\n")

    def since(self, count: int) -> tuple[int, list[LogLine]]:
        """How many lines there ever were, and those after the first `count`."""
        with self._lock:
            fresh = min(self.count - count, len(self._lines))
            return self.count, list(self._lines)[len(self._lines) - fresh :]


class FileTail:
    """New lines of a file that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = -1

    def lines(self) -> list[str]:
        """What came since the last call; at first, the end of the file."""
        try:
            size = self._path.stat().st_size
            if self._at < 0 or size < self._at:
                self._at = max(size - TAIL_BYTES, 0)
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(TAIL_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._at += whole
        return data[:whole].decode("utf-8", "replace").splitlines()
