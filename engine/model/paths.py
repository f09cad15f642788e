"""Where files of ours live on this machine (XDG directories on Linux, the customary ones elsewhere)."""

from __future__ import annotations

from pathlib import Path

from platformdirs import PlatformDirs

_DIRECTORIES = PlatformDirs("skippy", appauthor=False)


def config_dir() -> Path:
    """Holds `skippy.toml` and themes of the user's own."""
    return _DIRECTORIES.user_config_path


def data_dir() -> Path:
    """Holds what must not be lost: saved sessions."""
    return _DIRECTORIES.user_data_path


def cache_dir() -> Path:
    """Holds what can be made again: slices and the built default model."""
    return _DIRECTORIES.user_cache_path


def log_dir() -> Path:
    """Holds log files."""
    return _DIRECTORIES.user_log_path
