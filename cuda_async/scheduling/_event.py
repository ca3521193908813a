"""`Event`: a point in a stream that can be waited for, awaited and timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ClosedError, ContextError
from ._waiting import wait_for_submission

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from ..driver import EventHandle
    from ._submission import Submission

__all__ = ["Event"]


class Event:
    """A point in a stream. Made by `Stream.record()`.

    Awaiting it waits, on any loop, until the device has passed the point.
    """

    __slots__ = ("__weakref__", "_handle", "_submission")

    _handle: EventHandle | None
    _submission: Submission

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("events are made by Stream.record()")

    @classmethod
    def _make(cls, handle: EventHandle, submission: Submission) -> Event:
        self = object.__new__(cls)
        self._handle = handle
        self._submission = submission
        return self

    @property
    def is_done(self) -> bool:
        """True when the device has passed this point. Never waits."""
        return self._submission.poll()

    def synchronize(self) -> None:
        """Block this thread until the device has passed this point; raises what failed since the event before."""
        self._submission.synchronize()

    def __await__(self) -> Generator[Any, Any, None]:
        return wait_for_submission(self._submission).__await__()

    def elapsed_ms(self, since: Event) -> float:
        """Milliseconds on the device between `since` and this event.

        Raises:
            ClosedError: one of them is closed. ValueError: one has not been reached yet.
            ContextError: they are on two devices.
        """
        if not isinstance(since, Event):
            raise TypeError(f"expected an Event, got {type(since).__name__}; stream.record() makes one")
        here, there = self._submission.stream.device, since._submission.stream.device
        if here is not there:
            raise ContextError(f"the time between an event on {there} and one on {here} is not known")
        for event in (since, self):
            if event._handle is None:
                raise ClosedError("a closed event has no time; record another")
            if not event.is_done:
                raise ValueError("the device has not reached both events yet; await the later one first")
        assert since._handle is not None
        assert self._handle is not None
        return self._submission.stream.device.driver.event_elapsed_ms(since._handle, self._handle)

    def close(self) -> None:
        """Give the event back; closing twice is fine. It can still be waited for and awaited, but has no time."""
        handle, self._handle = self._handle, None
        device = self._submission.stream.device
        if handle is not None and device.is_healthy:
            device.driver.event_destroy(handle)

    async def aclose(self) -> None:
        """`close()`, for `async with`."""
        self.close()

    async def __aenter__(self) -> Event:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Event cannot be copied or pickled; record another one with stream.record()")

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._submission.stream.device._dropped_events.append(handle)
