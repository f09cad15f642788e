"""How often the app draws: as often as a share of one core allows.

The stages compute on the same cores. A drawing that costs 5 ms comes ten times a second, one that costs 20 ms
(a slow or busy machine, a huge terminal) two or three times. Keys do not wait for it.
"""

from __future__ import annotations

import time

SHARE = 0.05  # of one core
LONGEST = 0.4  # seconds between two drawings, however much they cost


class Throttle:
    """Ask `ready` often; it says when to draw."""

    def __init__(self) -> None:
        self._drawn_at = 0.0
        self._used_before = time.process_time()

    def ready(self) -> bool:
        """Whether the processor time since the last drawing began has been waited out."""
        now, used = time.monotonic(), time.process_time()
        if now - self._drawn_at < min((used - self._used_before) / SHARE, LONGEST):
            return False
        self._drawn_at, self._used_before = now, used
        return True
