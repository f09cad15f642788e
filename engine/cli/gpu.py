"""Tools tell once when layers cannot go to a GPU."""

from __future__ import annotations

import sys

from engine.compute.gpu import NO_GPU_HINT, gpu_warning


def warn_without_gpu(gpu_layers: int) -> None:
    """One line on standard error if this machine cannot do that. Raises BackendError without llama.cpp."""
    if warning := gpu_warning(gpu_layers):
        print(f"skippy-engine: warning: {warning}; {NO_GPU_HINT}", file=sys.stderr, flush=True)
