"""What a finalizer leaves for later, because it may run anywhere: inside a lock that this would take.

The next operation that is run does it, and so do `drain()` and the end of the process. It is little: futures that
failed and that nobody asked are logged, and what a closed event loop left in the middle of an operation is given up.
The end of the process logs futures that are there still, too: a failed one is part of a cycle (error, traceback,
frames), so it takes the garbage collector to collect it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["do_what_was_put_off", "log_unasked", "put_off", "unasked_futures"]

_logger = logging.getLogger("cuda_async")


class Unasked(Protocol):
    """A future that failed."""

    def _note_lost(self) -> None:
        """Nobody will ask for the error any more."""
        ...


put_off: deque[Callable[[], None]] = deque()
unasked_futures: weakref.WeakSet[Unasked] = weakref.WeakSet()


class _Doing(threading.local):
    is_under_way = False


_doing = _Doing()


def do_what_was_put_off() -> None:
    """Hold no lock."""
    if _doing.is_under_way:  # a handler of the logger runs an operation
        return
    _doing.is_under_way = True
    try:
        while put_off:
            with contextlib.suppress(Exception):  # of a filter, or another thread has done it
                put_off.popleft()()
    finally:
        _doing.is_under_way = False


def log_unasked(error: BaseException) -> None:
    """A future that failed with it is gone."""
    _logger.error("an operation that was started failed, and nobody asked its future", exc_info=error)


def _at_exit() -> None:
    for future in list(unasked_futures):
        future._note_lost()
    do_what_was_put_off()


atexit.register(_at_exit)
