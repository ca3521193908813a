"""`Bell`: one thread waits for it, and any thread rings it.

`threading.Event` and `threading.Condition` are Python over a lock. Where a signal handler raises inside of them, as
that of Ctrl-C does on the main thread, the lock may stay held, and then whoever rings hangs for good. Here waiting is
one call of C, and so is ringing: what is raised comes before it or behind it.
"""

from __future__ import annotations

import functools
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bell", "call_each"]

CallbackT = TypeVar("CallbackT", bound="Callable[[], object]")


class Bell:
    """Rung any number of times; who waits goes on if it was rung since the last wait.

    Attributes:
        ring: ring it, from any thread. Never waits, and holds no lock that an interrupt could leave held.
    """

    __slots__ = ("_rings", "ring")

    ring: Callable[[], None]

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()
        self.ring = functools.partial(self._rings.put, None)

    @property
    def is_rung(self) -> bool:
        """Whether a wait would end at once."""
        return not self._rings.empty()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until it is rung; False when that took longer. One thread at a time."""
        if timeout_s is None:
            self._rings.get()
        else:
            try:
                self._rings.get(timeout=timeout_s)
            except Empty:
                return False
        while not self._rings.empty():
            self._rings.get()
        return True


def call_each(callbacks: list[CallbackT]) -> None:
    """Call all of them, and take each out of the list behind its call.

    Where an interrupt comes out, the list has those that may not have been called, and one perhaps that was.
    """
    while callbacks:
        callbacks[0]()
        del callbacks[0]
