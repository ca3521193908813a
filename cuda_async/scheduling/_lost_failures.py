"""Failures of futures that nobody asked, until they are logged.

A future may be collected anywhere, inside a lock that a handler of the logger's wants, so it only notes its error; the
next operation that is run logs it, and so does `drain()`. The end of the process logs those of futures that are there
still: a failed one is part of a cycle (error, traceback, frames), so it takes the garbage collector to collect it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections import deque
from typing import Protocol

__all__ = ["log_lost_failures", "lost_failures", "unasked_futures"]

_logger = logging.getLogger("cuda_async")


class Unasked(Protocol):
    """A future that failed."""

    def _note_lost(self) -> None:
        """Nobody will ask for the error any more."""
        ...


lost_failures: deque[BaseException] = deque()
unasked_futures: weakref.WeakSet[Unasked] = weakref.WeakSet()


class _Logging(threading.local):
    is_under_way = False


_logging = _Logging()


def log_lost_failures() -> None:
    """Log what was noted."""
    if _logging.is_under_way:  # a handler runs an operation
        return
    _logging.is_under_way = True
    try:
        while lost_failures:
            with contextlib.suppress(Exception):  # of a filter, or another thread has logged it
                error = lost_failures.popleft()
                _logger.error(
                    "an operation that was started failed, and nobody asked its future", exc_info=error
                )
    finally:
        _logging.is_under_way = False


def _at_exit() -> None:
    for future in list(unasked_futures):
        future._note_lost()
    log_lost_failures()


atexit.register(_at_exit)
