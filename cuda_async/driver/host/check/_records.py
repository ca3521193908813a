"""What the checker keeps: of a place that touches memory, and with an entry of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._entries import Entry
    from ._clocks import Clock, Work
    from ._reports import CheckReport
    from ._words import Place

__all__ = ["Access", "Stamp", "stamp_of"]


class Access:
    """One place of one piece of work that touches memory; a number stands for it in shadows."""

    __slots__ = ("is_atomic", "members", "place", "sort", "work")

    def __init__(self, work: Work | None, place: Place, sort: str, is_atomic: bool) -> None:
        self.work = work
        self.place = place
        self.sort = sort
        self.is_atomic = is_atomic
        self.members: tuple[int, ...] = ()
        """For several reads that nothing orders: their numbers."""


class Stamp:
    """What the checker keeps with an entry.

    Attributes:
        clock: the program's when it was enqueued. end: of what comes behind a record.
        enqueued: the program's line. work: what the entry does; of a graph, its step now.
        found: what was found while it ran.
    """

    __slots__ = ("base", "clock", "end", "enqueued", "found", "work")

    def __init__(self, clock: Clock, enqueued: str) -> None:
        self.clock = clock
        self.enqueued = enqueued
        self.end: Clock | None = None
        self.work: Work | None = None
        self.base: dict[int, int] = {}
        self.found: list[CheckReport] = []


def stamp_of(entry: Entry) -> Stamp:
    """The entry's stamp; an empty one for what was enqueued before the checker was there."""
    stamp: Stamp | None = getattr(entry, "stamp", None)
    if stamp is None:
        stamp = entry.stamp = Stamp({}, "")
    return stamp
