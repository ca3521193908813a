"""Making a value once, however many threads ask for it.

Theory. Whoever makes a value holds the flight's lock meanwhile, by `with`, and nothing else says that it is being made.
So wherever an interrupt ends that, which may be between any two calls, the lock is free and the next one goes on. Who
waits has no thread to wait with, perhaps: then it leaves a callback with the flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

from cuda_async.scheduling import WaitElsewhere, may_wait_elsewhere

__all__ = ["SingleFlight"]

ValueT = TypeVar("ValueT")


class _Flight:
    """A value that is being made, while `lock` is held."""

    __slots__ = ("_callbacks", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call it, once or twice, when nobody makes the value any more; at once if that is so."""
        self._callbacks.append(callback)
        if not self.lock.locked():
            self.tell()

    def tell(self) -> None:
        """Nobody makes it: those who wait ask again. An interrupt may end this; then it is to be called again."""
        for callback in list(self._callbacks):
            callback()
            with suppress(ValueError):  # another thread tells, too
                self._callbacks.remove(callback)


class SingleFlight(Generic[ValueT]):
    """Values made at most once per key; who asks meanwhile waits. A failure is not kept.

    Waiting holds up a thread, but none of the few worker threads: what runs there is put off instead, and asks again
    (`WaitElsewhere`).
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, ValueT] = {}
        self._making: dict[Hashable, _Flight] = {}

    def peek(self, key: Hashable) -> ValueT | None:
        """The value, if it has been made."""
        return self._values.get(key)

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """The value; `make()` makes it if nobody has."""
        while True:
            with suppress(KeyError):
                return self._values[key]
            flight = self._making.get(key) or self._making.setdefault(key, _Flight())
            if may_wait_elsewhere() and flight.lock.locked():
                raise WaitElsewhere(flight.when_over)
            try:
                with flight.lock:
                    if self._making.get(key) is flight:  # else it is over, and maybe there is another one
                        try:
                            if key not in self._values:
                                self._values[key] = make()
                        finally:
                            self._making.pop(key, None)
            finally:
                try:
                    flight.tell()
                finally:  # behind an interrupt in there
                    flight.tell()

    def forget(self, key: Hashable) -> None:
        """Make the value anew when it is next asked for."""
        self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)
