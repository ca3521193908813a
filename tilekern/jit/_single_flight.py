"""Making a value once, however many threads ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["SingleFlight"]

ValueT = TypeVar("ValueT")


class SingleFlight(Generic[ValueT]):
    """Values made at most once per key; who asks meanwhile waits. A failure is not kept.

    Waiting blocks a thread: call it from worker threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Hashable, ValueT] = {}
        self._making: dict[Hashable, threading.Event] = {}

    def peek(self, key: Hashable) -> ValueT | None:
        """The value, if it has been made."""
        return self._values.get(key)

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """The value; `make()` makes it if nobody has."""
        while True:
            with self._lock:
                if key in self._values:
                    return self._values[key]
                others = self._making.get(key)
                if others is None:
                    mine = self._making[key] = threading.Event()
                    break
            # if that one fails, this one tries
            others.wait()
        try:
            value = make()
            with self._lock:
                self._values[key] = value
            return value
        finally:
            with self._lock:
                del self._making[key]
            mine.set()

    def forget(self, key: Hashable) -> None:
        """Make the value anew when it is next asked for."""
        with self._lock:
            self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)
