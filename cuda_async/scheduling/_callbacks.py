"""Callbacks of operations may build operations, but not run any, nor wait for all of them.

The mark is an object in a context variable, which is switched off at the end: what a callback leaves to others, a
task for instance, has the variable and is no callback any more.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..errors import ReentrancyError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Burst", "as_callback", "check_not_in_callback", "current_burst"]


CALLBACK = (
    "a callback of another operation: a callback may only build operations; return the operation from .then(), or "
    "combine it with zip()"
)


class Burst:
    """A stretch in which callbacks run.

    Attributes:
        where: what runs, and what to do instead, for messages.
    """

    __slots__ = ("active", "where")

    def __init__(self, where: str = CALLBACK) -> None:
        self.active = True
        self.where = where


current_burst: ContextVar[Burst | None] = ContextVar("cuda_async_burst", default=None)


def check_not_in_callback(what: str) -> None:
    """Raises `ReentrancyError` inside a callback of a running operation."""
    burst = current_burst.get()
    if burst is not None and burst.active:
        raise ReentrancyError(f"{what} inside {burst.where}")


@contextlib.contextmanager
def as_callback(where: str = CALLBACK) -> Iterator[None]:
    """What runs inside may build operations, but not run any; `where` says what it is, and what to do instead."""
    burst = Burst(where)
    before = current_burst.get()
    try:
        current_burst.set(burst)
        yield
    finally:
        burst.active = False
        current_burst.set(before)
