"""A plan that is pinned: a TOML file that says which node serves which layers of which model."""

from __future__ import annotations

import os
import tomllib
from itertools import pairwise
from pathlib import Path

from engine.config.kinds import Text
from engine.config.nodes import NodeSettings
from engine.config.plain import from_plain
from engine.config.tables import absolute
from engine.errors import ConfigError, UsageError
from engine.planning.profiles import LockedStage, TopologyLock, to_plain


def write_lock(lock: TopologyLock, path: Path) -> None:
    """Write the file; whoever reads it meanwhile sees the old one. Raises ConfigError."""
    import tomli_w  # not needed to read one

    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(tomli_w.dumps(to_plain(lock)), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def is_lock(path: Path) -> bool:
    """Whether a topology file holds a pinned plan, and not a list of running stages."""
    try:
        return "fingerprint" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False  # whoever reads it says what is wrong


def read_lock(path: Path) -> TopologyLock:
    """The pinned plan of a file; raises ConfigError."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        lock = from_plain(TopologyLock, data, path.name)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except UsageError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    _check_ranges(lock, path)
    return lock


def node_of(stage: LockedStage, folder: Path) -> NodeSettings:
    """The node of a pinned stage, as it was set. `folder` is that of the plan; the token is not read yet."""
    return NodeSettings(
        name=stage.node,
        url=stage.url,
        token_file=absolute(Text(is_file=True), stage.token_file, folder),
        memory_limit_gib=stage.memory_limit_gib,
        allow_transfer=stage.allow_transfer,
    )


def _check_ranges(lock: TopologyLock, path: Path) -> None:
    edges = [(stage.first, stage.end) for stage in lock.stages]
    whole = edges and edges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(edges))
    if not whole or any(first >= end for first, end in edges):
        shown = ", ".join(f"{first}:{end}" for first, end in edges) or "none"
        raise ConfigError(f"{path}: the layers of its stages do not follow each other: {shown}")
