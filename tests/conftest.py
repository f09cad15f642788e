"""Shared by all tests."""

from __future__ import annotations

from hypothesis import settings

# No example has a deadline: machines that run tests are shared, and how fast they are is no behaviour.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
