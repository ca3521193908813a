"""Finding the CUDA driver, on first use: `cuda.bindings` (a package), `libcuda` (a part of NVIDIA's driver)
and a device. Each may be missing, and each has its own remedy, so each has its own sentence.

The cheap questions come first: without the package or without `libcuda` nothing is imported. What was
found stays found for the life of the process. CUDA does not survive a fork: a child of a process that had
initialised the driver is told so.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ...errors import ContextError
from ._errors import describe_code

__all__ = ["FORKED", "Found", "cuda_device_count", "cuda_unavailable_reason", "find_driver"]

INSTALL = 'pip install "cuda-bindings>=13"'

FORKED = (
    "this process was forked from one that had already used CUDA, and CUDA does not survive a fork; "
    'start worker processes with the "spawn" method (multiprocessing.get_context("spawn")), or use CUDA '
    "only after the fork"
)

CUDA_ERROR_NO_DEVICE = 100


@dataclass(frozen=True)
class Found:
    """A usable CUDA driver."""

    api: Any
    """The module `cuda.bindings.driver`; it has no type information."""
    device_count: int
    process: int
    """Who initialised it."""


_lock = threading.Lock()
_found: Found | None = None


def _renew_lock_after_fork() -> None:
    """Another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock_after_fork)


def find_driver() -> Found:
    """The CUDA driver of this process. Slow the first time (it imports `cuda.bindings` and initialises).

    Raises:
        ContextError: what is missing, and what to do.
    """
    global _found
    with _lock:
        if _found is None:
            _found = _look()
    if _found.process != os.getpid():
        raise ContextError(FORKED)
    return _found


def cuda_device_count() -> int:
    """How many CUDA devices there are; 0 without a driver, a device or the packages. Never raises.

    In a process forked from one that had used CUDA this is the parent's number: the devices are there,
    but opening one raises `ContextError`.
    """
    if _found is not None:
        return _found.device_count
    try:
        return find_driver().device_count
    except ContextError:
        return 0


def cuda_unavailable_reason() -> str | None:
    """Why no CUDA device can be opened in this process, as a sentence; None when one can."""
    try:
        find_driver()
    except ContextError as error:
        return str(error)
    return None


def _look() -> Found:
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    has_library = _has_library(library)
    if not _has_bindings():
        also = "" if has_library else f"; nor was an NVIDIA driver found ({library} cannot be loaded)"
        raise ContextError(
            "no CUDA device can be used: the package cuda-bindings (13 or newer) is not installed; "
            f"{INSTALL}{also}"
        )
    if not has_library:
        raise ContextError(
            f"no CUDA device can be used: no NVIDIA driver was found ({library} cannot be loaded); install "
            "the NVIDIA driver, or in a container start it with GPU access"
        )
    try:
        import cuda.bindings
        from cuda.bindings import driver as api
    except ImportError as error:
        raise ContextError(
            f"no CUDA device can be used: importing cuda.bindings.driver failed ({error}); {INSTALL}"
        ) from error
    version = str(getattr(cuda.bindings, "__version__", "0"))
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < 13:
        raise ContextError(
            f"no CUDA device can be used: cuda-bindings is {version}, but 13 or newer is needed; {INSTALL}"
        )
    return Found(api=api, device_count=_initialise(api), process=os.getpid())


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except (ImportError, ValueError):  # no package `cuda`, or one that is blocked
        return False


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _initialise(api: Any) -> int:
    """Initialise the driver; the number of devices, at least 1."""
    try:
        code = api.cuInit(0)[0]
        count = 0
        if not code:
            code, count = api.cuDeviceGetCount()
    except Exception as error:  # the bindings raise bare RuntimeError when they cannot load the library
        raise ContextError(
            f"no CUDA device can be used: the NVIDIA driver could not be loaded: {error}"
        ) from error
    if int(code) == CUDA_ERROR_NO_DEVICE or (not code and count == 0):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES is {visible!r})" if visible is not None else ""
        raise ContextError(
            f"no CUDA device was found{hint}: the NVIDIA driver is there but it sees no device; "
            "check what nvidia-smi lists"
        )
    if code:
        raise ContextError(
            f"no CUDA device can be used: cuInit failed: {describe_code(api, code)}; "
            "check that nvidia-smi works"
        )
    return int(count)
