"""Which queue advances next: one object with one method, `next_queue(ready)`.

This is the only place that decides an order among streams. `ready` is never empty and holds the queues whose
first entry can advance now, in the order in which they became ready.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._queue import Queue

__all__ = ["FairOrder", "Order", "SteppedOrder"]


class Order(Protocol):
    """Chooses among ready queues."""

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        """The queue whose first entry takes one step now; one of `ready`."""
        ...


class FairOrder:
    """Fair shares of time within a priority; higher priorities first, but nobody waits long.

    - Smaller priority numbers go first.
    - Among equals, the one that has used the least time. Time used while others were not ready does not count
      against anybody: the engine lifts a queue that becomes ready to the level of those that are.
    - Whoever has been ready for `patience_s` without a step goes first, so low priorities do not starve.
    """

    def __init__(self, patience_s: float = 0.008) -> None:
        self.patience_s = patience_s

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        if len(ready) == 1:
            return ready[0]
        longest = min(ready, key=_ready_since)
        if time.perf_counter() - longest.ready_since > self.patience_s:
            return longest
        return min(ready, key=_by_priority_and_share)


class SteppedOrder:
    """The queue that became ready first: the same order on every run, whatever the clock says."""

    def next_queue(self, ready: Sequence[Queue]) -> Queue:
        return ready[0]


def _ready_since(queue: Queue) -> float:
    return queue.ready_since


def _by_priority_and_share(queue: Queue) -> tuple[int, float]:
    return queue.priority, queue.used_s
