"""The calls of llama.cpp that a stage needs, found and checked once.

The staging calls (`llama_cpp.llama_cpp_ext`) are no stable interface, so exactly one release is supported. No
other module of ours touches them. Functions of ggml are looked up through libllama, which links to it: the
libraries beside it in a wheel are copies, and loading one of them would give a second, unrelated ggml.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.compute.logs import SINK
from engine.errors import BackendError

# A failed assertion of ggml starts a debugger for a backtrace and then hangs: let it only abort.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

SUPPORTED_VERSION = "0.3.36"
_INSTALL = f"install it with `pip install llama-cpp-python=={SUPPORTED_VERSION}`"

FLASH_ATTENTION_ON = 1
CONTEXT_TYPE_MTP = 1
SPLIT_MODE_NONE = 0  # one device, `main_gpu`
NO_GPU = -1  # as `main_gpu`: the CPU alone

_LLAMA = (
    "llama_backend_init",
    "llama_batch_get_one",
    "llama_context_default_params",
    "llama_free",
    "llama_get_logits_ith",
    "llama_get_memory",
    "llama_init_from_model",
    "llama_memory_seq_rm",
    "llama_model_default_params",
    "llama_model_free",
    "llama_model_get_vocab",
    "llama_model_load_from_file",
    "llama_model_n_embd",
    "llama_n_batch",
    "llama_sampler_accept",
    "llama_sampler_apply",
    "llama_sampler_clone",
    "llama_sampler_free",
    "llama_sampler_init_grammar",
    "llama_supports_gpu_offload",
    "llama_token",
    "llama_token_data_array",
    "llama_vocab_is_eog",
    "llama_vocab_n_tokens",
    "ggml_backend_sched_eval_callback",
)
_STAGING = ("llama_set_embeddings_nextn", "llama_get_embeddings_nextn")
_PARAMETERS = {
    "llama_model_params": ("load_mtp", "main_gpu", "n_gpu_layers", "split_mode"),
    "llama_context_params": (
        "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_threads", "n_threads_batch",
        "ctx_type", "flash_attn_type", "cb_eval", "swa_full", "kv_unified", "ctx_other",
    ),
}  # fmt: skip
# Result and arguments. They return at once, so they are called without giving the GIL away: inside `cb_eval`,
# a thousand times a token, every release would be a chance for another thread to take it.
_GGML: dict[str, tuple[Any, ...]] = {
    "ggml_get_name": (ctypes.c_char_p, ctypes.c_void_p),
    "ggml_get_type_traits": (ctypes.c_void_p, ctypes.c_int),
    "ggml_nbytes": (ctypes.c_size_t, ctypes.c_void_p),
    "ggml_backend_tensor_get": (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
    "ggml_backend_tensor_set": (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
}


class Batch(ctypes.Structure):
    """`llama_batch` with plain addresses: setting one costs a tenth of setting a typed pointer."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.c_void_p),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
    )


def check_bindings() -> None:
    """Raise BackendError, naming what is missing, unless the installed llama-cpp-python can run stages."""
    bindings()


@functools.cache
def bindings() -> Any:
    """The namespace of llama.cpp's functions, by their own names. Initialises llama.cpp and takes its log.

    `llama_decode`, `llama_get_logits` and `llama_get_embeddings_nextn` differ from llama-cpp-python's: they
    take a `Batch` and return plain addresses. `llama_decode_public` is llama-cpp-python's own.
    """
    llama, staging = _import_llama_cpp()
    found = SimpleNamespace()
    missing = [name for name in (*_LLAMA, "llama_decode", "llama_get_logits") if not hasattr(llama, name)]
    missing += [name for name in _STAGING if not hasattr(staging, name)]
    missing += [
        f"{struct}.{name}"
        for struct, names in _PARAMETERS.items()
        for name in names
        if name not in {field[0] for field in getattr(getattr(llama, struct, None), "_fields_", ())}
    ]
    if not _same_layout(getattr(llama, "llama_batch", None)):
        missing.append("llama_batch in the known layout")
    for name, (result, *arguments) in _GGML.items():
        function = _ggml_function(llama, name)
        if function is None:
            missing.append(name)
            continue
        setattr(found, name, _retyped(function, ctypes.PYFUNCTYPE(result, *arguments)))
    if missing:
        raise BackendError(f"the installed llama-cpp-python lacks {', '.join(missing)}", hint=_INSTALL)
    for name in _LLAMA:
        setattr(found, name, getattr(llama, name))
    pointer = ctypes.c_void_p
    found.llama_set_embeddings_nextn = staging.llama_set_embeddings_nextn
    getter = ctypes.CFUNCTYPE(pointer, pointer)
    found.llama_get_embeddings_nextn = _retyped(staging.llama_get_embeddings_nextn, getter)
    found.llama_get_logits = _retyped(llama.llama_get_logits, getter)
    found.llama_decode_public = llama.llama_decode
    found.llama_decode = _retyped(llama.llama_decode, ctypes.CFUNCTYPE(ctypes.c_int32, pointer, Batch))
    found.log_callback = llama.llama_log_callback(SINK.write)  # C keeps no reference: this one must live
    llama.llama_log_set(found.log_callback, None)
    llama.llama_backend_init()
    return found


def _import_llama_cpp() -> tuple[Any, Any]:
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as llama
        from llama_cpp import llama_cpp_ext as staging
    except ModuleNotFoundError as error:
        if error.name == "llama_cpp":
            raise BackendError("llama-cpp-python is not installed", hint=_INSTALL) from error
        raise BackendError(f"llama-cpp-python lacks the module {error.name}", hint=_INSTALL) from error
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise BackendError(f"llama-cpp-python cannot be loaded: {error}", hint=_INSTALL) from error
    if llama_cpp.__version__ != SUPPORTED_VERSION:
        found = f"llama-cpp-python {llama_cpp.__version__} is installed, but stages need {SUPPORTED_VERSION}"
        raise BackendError(found, hint=_INSTALL)
    return llama, staging


def _same_layout(struct: Any) -> bool:
    """Whether llama-cpp-python's `llama_batch` has the fields of ours at the same places."""
    if struct is None or ctypes.sizeof(struct) != ctypes.sizeof(Batch):
        return False
    names = [field[0] for field in Batch._fields_]
    return [field[0] for field in struct._fields_] == names and all(
        getattr(struct, name).offset == getattr(Batch, name).offset for name in names
    )


def _ggml_function(llama: Any, name: str) -> Any:
    """A function of libggml-base: through libllama, or (Windows) from the library that it has loaded."""
    function = getattr(llama._lib, name, None)
    if function is None and sys.platform == "win32":
        from llama_cpp._ctypes_extensions import load_shared_library

        try:
            library = load_shared_library("ggml-base", Path(llama._lib._name).parent)
        except (FileNotFoundError, RuntimeError):
            return None
        function = getattr(library, name, None)
    return function


def _retyped(function: Any, prototype: Any) -> Any:
    """The same C function under another prototype; the original keeps its own."""
    return prototype(ctypes.cast(function, ctypes.c_void_p).value)
