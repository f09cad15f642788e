"""Whether layers that are to run on a GPU can: llama.cpp itself computes them on the CPU without a word."""

from __future__ import annotations

from engine.compute.bindings import bindings

NO_GPU_HINT = "docs/gpu.md says how to build it for one"


def gpu_warning(gpu_layers: int) -> str:
    """Why `gpu_layers` of this machine stay on its CPU; empty if they do not, or there are none.

    Raises BackendError if llama.cpp cannot be used at all.
    """
    if gpu_layers == 0 or bindings().llama_supports_gpu_offload():
        return ""
    return f"--gpu-layers {gpu_layers} has no effect: llama.cpp was built without a GPU, or finds none here"
