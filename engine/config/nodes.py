"""Machines that wait for layers: what a `[[nodes]]` entry of `skippy.toml`, or of a nodes file, may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.config.kinds import Kind, Number, Switch, Text, Url


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A machine that runs `skippy-tui --engine-only` or `skippy-engine stage` without a model of its own."""

    name: str  # unique among the nodes
    url: str  # ws:// or wss://
    token: str = field(default="", repr=False)  # from its file, else from the environment
    token_file: str = ""  # where the token was read; shown in its place
    memory_limit_gib: float = 0.0  # most memory to use there; 0: what the node says is free
    allow_transfer: bool = True  # whether this machine may send it a slice that it has no copy of


@dataclass(frozen=True, slots=True)
class NodeKey:
    """One key of a `[[nodes]]` entry."""

    kind: Kind
    help: str
    required: bool = False


NODE_KEYS: Mapping[str, NodeKey] = {
    "name": NodeKey(Text("NAME"), "how the node is called in plans; unique", required=True),
    "url": NodeKey(Url(), "where the node listens", required=True),
    "token_file": NodeKey(
        Text("FILE", is_file=True), "file with the token that it wants (default: $SKIPPY_TOKEN)"
    ),
    "memory_limit_gib": NodeKey(
        Number(0, 1_000_000, "GIB"), "most memory to use there (0: what the node says is free)"
    ),
    "allow_transfer": NodeKey(Switch(), "send it a slice of the model if it has no copy of it"),
}
"""The fields of `NodeSettings` that can be written, with what they may hold."""
