"""How a node was started, and what its machine has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What the owner of a machine allows."""

    host: str = "127.0.0.1"
    port: int = 0
    stage_port: int = 0  # where the stage listens; 0: any free one
    token: str = field(default="", repr=False)
    insecure: bool = False
    tls_cert: str = ""  # PEM files; with them it listens on wss://
    tls_key: str = ""
    tls_ca: str = ""  # whom to trust at wss://; empty: the system's certificates
    accept_slices: bool = False  # may slices be sent here?
    folders: tuple[str, ...] = ()  # with models
    files: tuple[str, ...] = ()  # models by name
    threads: int = 0  # most that a stage may use; 0: all cores
    gpu_layers: int = 0
    gpu_device: int = -1
    slice_cache_gib: float = 0.0  # most that slices may take on the disk; 0: any number

    def threads_for(self, asked: int) -> int:
        """Threads of a stage, from what the engine asks for (0: anything) and the owner allows."""
        allowed = self.threads or cores()
        return min(asked, allowed) if asked else allowed


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(pid: int = 0) -> int:
    """Bytes that can be had without swapping, counting those of a process that would end first."""
    free = int(psutil.virtual_memory().available)
    if pid:
        try:
            used = psutil.Process(pid).memory_info()
        except psutil.Error:
            return free
        free += int(used.rss - getattr(used, "shared", 0))  # mapped files count as available already
    return free
