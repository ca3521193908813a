"""Failures of futures that nobody asked, until they are logged.

A future may be collected anywhere, inside a lock that a handler of the logger's wants, so it only notes its error; the
next operation that is run logs it, or the end of the process.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque

__all__ = ["log_lost_failures", "lost_failures"]

_logger = logging.getLogger("cuda_async")

lost_failures: deque[BaseException] = deque()


def log_lost_failures() -> None:
    """Log what was noted."""
    while lost_failures:
        try:
            error = lost_failures.popleft()
        except IndexError:  # another thread has logged it
            return
        _logger.error("an operation that was started failed, and nobody asked its future", exc_info=error)


atexit.register(log_lost_failures)
