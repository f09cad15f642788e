"""What the figures depend on besides the settings: machine and versions."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import engine
from engine.compute.bindings import SUPPORTED_VERSION


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def source_fingerprint() -> str:
    """Of this package's modules, so that two states of the program are not taken for one."""
    root = Path(engine.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, str | int]:
    """Where a run was measured, and with what. Two parts of one run must agree on all of it."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "skippy": engine.__version__,
        "source": source_fingerprint(),
        "llama-cpp-python": SUPPORTED_VERSION,
        "websockets": version("websockets"),
    }
