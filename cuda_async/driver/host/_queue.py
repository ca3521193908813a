"""`Queue`: one stream of a host device, as the engine sees it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...errors import CudaAsyncError
    from ._entries import Entry, EventRecord, Failure
    from .check import Track

__all__ = ["Queue"]


class Queue:
    """One stream's entries. Everything here is the engine's, under its lock.

    Attributes:
        owner: the device it belongs to.
        number: how many queues the engine made before.
        priority: smaller numbers go first.
        entries: what is not completed, first in, first out; the first one may be under way.
        enqueued, completed: how many entries came and went.
        steps: the first entry's iterator, once it is started.
        blocked_on: the record that the first entry waits for.
        failure: of an entry since the last event record.
        reported: what the last failed event record carries, for who synchronizes with the queue.
        refusal: set for good when the queue takes no more entries; makes the error to raise.
        orphan: its stream was destroyed; it goes when it is empty.
        used_s: time used, as `FairOrder` counts it.
        ready_since: when it became ready, or took its last step.
        track: what the checking mode knows of its order; None without it.
    """

    __slots__ = (
        "blocked_on",
        "enqueued",
        "entries",
        "failure",
        "number",
        "orphan",
        "owner",
        "priority",
        "ready_since",
        "refusal",
        "reported",
        "steps",
        "track",
        "used_s",
    )

    def __init__(self, owner: object = None, priority: int = 0, number: int = 0) -> None:
        self.owner = owner
        self.number = number
        self.priority = priority
        self.entries: deque[Entry] = deque()
        self.enqueued = 0
        self.steps: Iterator[None] | None = None
        self.blocked_on: EventRecord | None = None
        self.failure: Failure | None = None
        self.reported: Failure | None = None
        self.refusal: Callable[[], CudaAsyncError] | None = None
        self.orphan = False
        self.used_s = 0.0
        self.ready_since = 0.0
        self.track: Track | None = None

    @property
    def completed(self) -> int:
        return self.enqueued - len(self.entries)
