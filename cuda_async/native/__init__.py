"""What every launch does, compiled (`_native.c`). It is optional, and stands in for Python that does the same.

It is built with the package where there is a C compiler, and a Python with a GIL; nothing else depends on it.
`CUDA_ASYNC_NATIVE=0` in the environment leaves it out (`_load.py`); `python -m cuda_async.native` says what is so.
"""

from __future__ import annotations

from ._load import compiled, native

__all__ = ["compiled", "native"]
