"""What stands in a stream's queue: entries, event records, and the failure of an entry.

An entry does its work in `start`: all of it at once (returns None), or in steps (returns an iterator that the
engine advances, with other streams' steps in between). Steps are small, at most about 2 ms.

A failure belongs to a queue from the entry that failed to the next event record (see `_engine.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import CudaAsyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from ._engine import Engine
    from ._queue import Queue

__all__ = ["Entry", "EventRecord", "Failure", "HandOnEntry", "WaitEntry"]


NOT_RUN = (
    "this operation has not run: it waited on the device for other work that uses the same memory, and this is that "
    "work's failure; run it again"
)


class Failure:
    """An entry's error, and whether somebody was told."""

    __slots__ = ("error", "observed", "traceback")

    def __init__(self, error: CudaAsyncError) -> None:
        self.error = error
        self.traceback: TracebackType | None = error.__traceback__
        self.observed = False

    def tell(self) -> CudaAsyncError:
        """The error to raise, with the traceback it had when it happened.

        A copy each time: an error keeps the frames alive that it is raised through, and the tensors in them.
        """
        self.observed = True
        error = self.error
        make, arguments = CudaAsyncError.__reduce__(error)  # whatever a class of the caller's says
        copy: CudaAsyncError = make(*arguments)
        copy.__cause__ = error.__cause__
        copy.__suppress_context__ = error.__suppress_context__
        return copy.with_traceback(self.traceback)

    def handed_on(self) -> Failure:
        """For a queue that waited for the work that failed, and does not run what comes next."""
        return _HandedOn(self)


class _HandedOn(Failure):
    __slots__ = ("_first",)

    def __init__(self, first: Failure) -> None:
        self._first = first

    @property
    def observed(self) -> bool:  # type: ignore[override]
        return self._first.observed

    def tell(self) -> CudaAsyncError:
        error = self._first.tell()
        error.__notes__ = [*(note for note in getattr(error, "__notes__", ()) if note != NOT_RUN), NOT_RUN]
        return error

    def handed_on(self) -> Failure:
        return self


class Entry:
    """One piece of work in a queue.

    Attributes:
        stamp: what the checking mode keeps here; unset without it.
    """

    __slots__ = ("stamp",)

    stamp: Any

    kernel = ""
    """Name of the kernel, for a launch."""
    skippable = True
    """Whether the entry is left out between a failure and the next event record."""
    immediate = False
    """Whether it takes no time to speak of: then the thread that enqueues it on an empty queue runs it."""
    repeatable = False
    """Whether `start`, where it was interrupted, is to be called again: it does all at once, and finds what is done."""

    @property
    def completes(self) -> EventRecord | None:
        """A record that is done once the entry is."""
        return None

    def start(self) -> Iterator[None] | None:
        """Do the work, or return an iterator that does it in steps."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The entry will never run: its queue was closed, or its device lost. Keep the books only."""


class EventRecord(Entry):
    """One record of an event: an entry, and what waiters look at.

    `done` is written last and never reset: reading it needs no lock.
    """

    __slots__ = ("callbacks", "done", "failure", "time_s", "waiters")

    skippable = False
    immediate = True
    repeatable = True

    def __init__(self) -> None:
        self.done = False
        self.failure: Failure | None = None
        self.time_s = 0.0
        self.waiters: list[tuple[Engine, Queue]] = []
        self.callbacks: list[Callable[[], object]] = []

    @property
    def completes(self) -> EventRecord:
        return self

    def start(self) -> None:
        """Nothing to do: the engine completes records."""


class HandOnEntry(Entry):
    """The engine hands on the record's failure. The queue has waited for the record, or for what comes behind it."""

    __slots__ = ("record",)

    skippable = False
    immediate = True
    repeatable = True

    def __init__(self, record: EventRecord) -> None:
        self.record = record

    def start(self) -> None:
        """Nothing to do: the engine has the failure."""


class WaitEntry(HandOnEntry):
    """Later entries of the queue wait for the record too: the engine starts it when the record is done."""

    __slots__ = ()
