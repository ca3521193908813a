"""Errors that are kept for whoever awaits, and the memory that they hold.

The frames of a traceback hold what was in their variables, tensors too; and where they, or their callers, also hold
the future, shared operation or submission that keeps the error, that is a cycle, which Python frees when its collector
runs. No frame can be told to forget its caller; so where memory is short, and something that keeps an error is alive,
the collector is run.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import weakref
from typing import TYPE_CHECKING

from ..errors import CudaAsyncError, ReentrancyError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["collect_kept_errors", "errors_of_work_aside", "note_kept_error"]

MAX_WAIT_S = 1.0
"""How long a thread waits for another's collection."""

_one_at_a_time = threading.RLock()
_keepers: weakref.WeakSet[object] = weakref.WeakSet()


def note_kept_error(keeper: object) -> None:
    """`keeper` refers to an error that was or will be raised."""
    _keepers.add(keeper)


@contextlib.contextmanager
def errors_of_work_aside() -> Iterator[None]:
    """Within a wait: whoever awaits that work has its errors. That nothing may wait here is the caller's."""
    try:
        yield
    except ReentrancyError:
        raise
    except CudaAsyncError:
        pass


def collect_kept_errors() -> bool:
    """Free what nothing but such cycles holds; False where there cannot be any. Hold no lock, it runs finalizers."""
    if not _keepers:
        return False
    # While one thread collects, the call does nothing on another. The bound is for a finalizer that waits for us.
    is_alone = False
    try:
        is_alone = _one_at_a_time.acquire(timeout=MAX_WAIT_S)
        contextvars.Context().run(gc.collect)  # finalizers are no callbacks of what runs here
    finally:
        if is_alone:
            _one_at_a_time.release()
    return True
