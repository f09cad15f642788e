"""Every test sees the same zone and colours, whatever the machine is set to; apps start fast."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    os.environ.pop("TZ", None)
    time.tzset()


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_collected_rarely() -> Iterator[None]:
    """An app is very many small objects: looking through them all the time is a good part of a test."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 20)
    yield
    gc.set_threshold(*before)
