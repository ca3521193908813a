"""Anonymous mappings: the one behind an arena, a large range that the system commits page by page, and smaller ones.

All are private: a forked child has its own copy of what is in them.
"""

from __future__ import annotations

import mmap
import os

from ...errors import ContextError
from ._settings import memory_size_bytes

__all__ = ["map_arena", "map_pages"]

_DEFAULT_SIZE = 16 << 30
_SMALLEST_SIZE = 64 << 20


def map_arena(size_bytes: int | None) -> mmap.mmap:
    """An anonymous mapping of `size_bytes`, or of what the environment says.

    When neither says anything: 16 GiB, at most the machine's memory, halved while the system refuses.

    Raises:
        ContextError: the system refuses the size asked for, or 64 MiB.
    """
    asked = size_bytes if size_bytes is not None else memory_size_bytes()
    size = _rounded_to_pages(asked if asked is not None else min(_DEFAULT_SIZE, _physical_bytes()))
    while True:
        try:
            return _map(size)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            if asked is not None or size // 2 < _SMALLEST_SIZE:
                raise ContextError(
                    f"the host device cannot map {size} bytes of memory ({error}); "
                    "set CUDA_ASYNC_HOST_MEMORY lower"
                ) from error
            size = _rounded_to_pages(size // 2)


def map_pages(size_bytes: int, flags: int = 0) -> mmap.mmap:
    """`size_bytes` of zeros, page-aligned."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


def _map(size: int) -> mmap.mmap:
    # Linux: do not count the untouched part against the overcommit limit (0x4000; in `mmap` since 3.13).
    is_linux = hasattr(os, "uname") and os.uname().sysname == "Linux"
    return map_pages(size, getattr(mmap, "MAP_NORESERVE", 0x4000 if is_linux else 0))


def _rounded_to_pages(size: int) -> int:
    return max(1, -(-size // mmap.PAGESIZE)) * mmap.PAGESIZE


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _DEFAULT_SIZE
