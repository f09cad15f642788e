"""Where files of ours lie. On Linux the XDG variables move them."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_NAME = "skippy"


def config_dir() -> Path:
    """Settings and themes of the user."""
    return platformdirs.user_config_path(_NAME, appauthor=False)


def config_file() -> Path | None:
    """The user's `skippy.toml`, if there is one."""
    path = config_dir() / "skippy.toml"
    return path if path.is_file() else None


def data_dir() -> Path:
    """What people would miss: histories and chat sessions."""
    return platformdirs.user_data_path(_NAME, appauthor=False)


def cache_dir() -> Path:
    """What can be made again: slices and the default model."""
    return platformdirs.user_cache_path(_NAME, appauthor=False)


def log_dir() -> Path:
    """Logs of engines and of failed commands."""
    return platformdirs.user_log_path(_NAME, appauthor=False)
