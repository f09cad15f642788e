"""llama.cpp, one context at a time. Importing this package loads it.

Programs that compute import it before anything that needs NumPy: in a CUDA build, `std::regex` inside
libllama crashes if NumPy was loaded first (seen on Linux with GCC 13 and NumPy 2.4; docs/gpu.md).
"""

import contextlib

with contextlib.suppress(Exception):  # `bindings` says what is wrong with it
    import llama_cpp  # noqa: F401
