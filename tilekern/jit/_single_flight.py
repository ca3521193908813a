"""Making a value once, however many threads ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cuda_async.scheduling import WaitElsewhere, may_wait_elsewhere

__all__ = ["SingleFlight"]

ValueT = TypeVar("ValueT")


class _Flight:
    """A value that is being made."""

    __slots__ = ("_callbacks", "_done", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def wait(self) -> None:
        """Until it is made, or could not be."""
        if may_wait_elsewhere():
            raise WaitElsewhere(self.when_done)
        self._done.wait()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it then, on whatever thread; at once if that is past."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def land(self) -> None:
        with self._lock:
            self._done.set()
            callbacks = self._callbacks
        for callback in callbacks:
            callback()


class SingleFlight(Generic[ValueT]):
    """Values made at most once per key; who asks meanwhile waits. A failure is not kept.

    Waiting holds up a thread, but none of the few worker threads: what runs there is put off instead, and asks again
    (`WaitElsewhere`).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Hashable, ValueT] = {}
        self._making: dict[Hashable, _Flight] = {}

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
                    mine = self._making[key] = _Flight()
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
            mine.land()

    def forget(self, key: Hashable) -> None:
        """Make the value anew when it is next asked for."""
        with self._lock:
            self._values.pop(key, None)

    def __len__(self) -> int:
        return len(self._values)
