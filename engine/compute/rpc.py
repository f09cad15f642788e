"""llama.cpp's own way to split a model: its RPC backend, for comparison in the bench.

llama-cpp-python is built without it, but a backend can be loaded into a process that runs: `libggml-rpc.so`,
compiled from two files of the same source (docs/performance.md). Another version's would not fit.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from engine.compute.bindings import bindings
from engine.errors import BackendError

_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_HINT = "build it from the source of the installed llama-cpp-python (docs/performance.md)"


def serve(library: str, endpoint: str, threads: int) -> None:
    """Lend this machine's processor to one client after the other at `HOST:PORT`; never returns.

    Raises BackendError if the library does not fit.
    """
    ggml = _ggml()
    device = ggml.ggml_backend_dev_by_type(_CPU)
    text, size, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    prototype = ctypes.CFUNCTYPE(None, text, text, size, size, pointer)
    start = prototype(_procedure(library, "ggml_backend_rpc_start_server"))
    start(endpoint.encode(), None, threads, 1, (pointer * 1)(device))
    raise BackendError(f"the RPC server at {endpoint} has ended")


def remote_device(library: str, endpoint: str) -> int:
    """The processor that is lent at `HOST:PORT`, for `LoadedModel(devices=...)`. Raises BackendError.

    It must be there: llama.cpp ends the process if it is not.
    """
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
    server = prototype(_procedure(library, "ggml_backend_rpc_add_server"))(endpoint.encode())
    if not server:
        raise BackendError(f"no RPC server answers at {endpoint}")
    return int(_ggml().ggml_backend_reg_dev_get(server, 0))


def check_library(library: str) -> None:
    """Raise BackendError unless the RPC backend can be loaded from a library."""
    _backend(os.path.abspath(library))


@functools.cache
def _ggml() -> Any:
    """The functions of ggml that are needed, through libllama as in `bindings`."""
    bindings()
    from llama_cpp import llama_cpp as llama

    pointer = ctypes.c_void_p
    ggml: Any = llama._lib
    for name, result, *arguments in (
        ("ggml_backend_load", pointer, ctypes.c_char_p),
        ("ggml_backend_dev_by_type", pointer, ctypes.c_int),
        ("ggml_backend_reg_dev_get", pointer, pointer, ctypes.c_size_t),
        ("ggml_backend_reg_get_proc_address", pointer, pointer, ctypes.c_char_p),
    ):
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml


@functools.cache
def _backend(library: str) -> int:
    if not os.path.isfile(library):
        raise BackendError(f"there is no {library}", hint=_HINT)
    backend = _ggml().ggml_backend_load(library.encode())
    if not backend:
        raise BackendError(f"{library} cannot be loaded as a backend of llama.cpp", hint=_HINT)
    return int(backend)


def _procedure(library: str, name: str) -> int:
    backend = _backend(os.path.abspath(library))
    address = _ggml().ggml_backend_reg_get_proc_address(backend, name.encode())
    if not address:
        raise BackendError(f"{library} has no {name}: it is not llama.cpp's RPC backend", hint=_HINT)
    return int(address)
