"""Controls of a stepped host device: tests decide when each entry runs, and which call fails.

Every enqueueing call of the driver puts one entry into its stream: a launch, a copy, a fill, an allocation, a free, an
event record, a wait. Nothing runs until `advance`, which runs entries in the thread that calls it. Blocking calls
(`*_synchronize`) wait for another thread to advance.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ...errors import ContextError
from .._protocol import Driver, StreamHandle

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._engine import Engine
    from ._queue import Queue

__all__ = ["SteppedControls"]

_CALLS = tuple(name for name, value in vars(Driver).items() if callable(value) and not name.startswith("_"))


class SteppedControls:
    """The part of `HostDriver` that is for tests.

    Attributes:
        is_stepped: whether this device advances only when told. All methods below need it.
        freed: addresses in the order in which streams executed their frees.
        calls: how often each method of the `Driver` protocol was called.
    """

    engine: Engine
    _streams: dict[StreamHandle, Queue]

    def __init__(self, stepped: bool) -> None:
        self.is_stepped = stepped
        self.freed: list[int] = []
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, deque[Exception]] = {}
        self._controls_lock = threading.Lock()
        if stepped:
            for name in _CALLS:
                setattr(self, name, self._counted(name, getattr(self, name)))

    # Any: each wrapper takes and returns what the method it wraps does.
    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._controls_lock:
                self.calls[name] += 1
                failures = self._failures.get(name)
                error = failures.popleft() if failures else None
            if error is not None:
                raise error
            return method(*args, **kwargs)

        return call

    def advance(self, stream: StreamHandle | None = None, entries: int = 1) -> int:
        """Complete up to `entries` entries of `stream`, or of any streams.

        Returns:
            How many were completed: fewer when the stream is empty or waits for an event.
        """
        self._need_stepped("advance")
        queue = None if stream is None else self._stepped_queue(stream)
        done = 0
        while done < entries:
            try:
                if self.engine.step(queue) is not None:
                    done += 1
            except LookupError:
                break
        return done

    def advance_all(self) -> int:
        """Complete all that can be; returns how many entries."""
        done = 0
        while self.advance():
            done += 1
        return done

    def step(self, stream: StreamHandle) -> bool:
        """Take one step of the stream's first entry, which may have many; True when that completed it.

        Raises:
            LookupError: the stream is empty or waits for an event.
        """
        self._need_stepped("step")
        return self.engine.step(self._stepped_queue(stream)) is not None

    def pending(self, stream: StreamHandle | None = None) -> int:
        """How many entries are not completed, in `stream` or in all streams."""
        self._need_stepped("pending")
        if stream is not None:
            return len(self._stepped_queue(stream).entries)
        return sum(len(queue.entries) for queue in self.engine.queues_of(self))

    def is_blocked(self, stream: StreamHandle) -> bool:
        """Whether the stream's first entry is a wait for an event that is not done."""
        self._need_stepped("is_blocked")
        return self._stepped_queue(stream).blocked_on is not None

    def wait_enqueued(self, stream: StreamHandle, count: int = 1, timeout_s: float | None = 10.0) -> None:
        """Block this thread until at least `count` entries are pending in `stream`.

        Call it from a thread where an event loop must go on, for instance with `anyio.to_thread.run_sync`.

        Raises:
            TimeoutError: that took longer than `timeout_s`.
        """
        self._need_stepped("wait_enqueued")
        queue = self._stepped_queue(stream)
        if not self.engine.wait_enqueued(queue, count, timeout_s):
            raise TimeoutError(
                f"{len(queue.entries)} entries after {timeout_s} s in stream {stream}, not {count}"
            )

    def fail_next(self, call: str, error: Exception) -> None:
        """The next call of the driver method `call` raises `error` and does nothing; may be given several times.

        Raises:
            ValueError: `call` is no method of `cuda_async.driver.Driver`; the message lists them.
        """
        self._need_stepped("fail_next")
        if call not in _CALLS:
            raise ValueError(f"the driver has no method {call!r}; it has {', '.join(_CALLS)}")
        if not isinstance(error, BaseException):
            raise TypeError(f"a call fails with an error, got {error!r}")
        with self._controls_lock:
            self._failures.setdefault(call, deque()).append(error)

    def _stepped_queue(self, stream: StreamHandle) -> Queue:
        queue = self._streams.get(stream)
        if queue is None:
            raise ValueError(f"{stream} is not a stream of this device, or was destroyed")
        return queue

    def _need_stepped(self, what: str) -> None:
        if not self.is_stepped:
            raise ContextError(f"{what}() needs a stepped device; make one with HostDriver(stepped=True)")
