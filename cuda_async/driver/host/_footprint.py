"""What an action touches: two that touch nothing in common may change places, and nothing else changes.

Stands on what entries say of themselves. A kernel is taken to read and write every allocation that one of its arguments
points into, and everything when none does; memory that it finds through pointers in memory is not seen. Staging memory
belongs to the program too, which touches it between its calls. What touches other memory touches everything.

A footprint is compared with those of other runs of the same program, where the same things lie at other addresses. So
places are counted from the start of the device's memory or of a piece of staging memory, and records are numbered in
the order in which they were enqueued.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ._entries import EventRecord, HandOnEntry
from ._graph import ConditionalEntry, GraphEntry
from ._work import (
    AllocateEntry,
    ConvertEntry,
    CopyEntry,
    FillEntry,
    FreeEntry,
    LaunchEntry,
    StridedCopyEntry,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._driver import HostDriver
    from ._entries import Entry

__all__ = ["Footprint", "FootprintBook"]

_STAGING = 1 << 62
"""Places of staging memory lie beyond all others."""


@dataclass(slots=True)
class Footprint:
    """What one action touches.

    Attributes:
        everything: all there is.
        program: it is the program's, or of something that runs in the program's thread.
        programs_memory: it touches staging memory.
        reads, writes: ranges of places, [start, end).
        record: number of the record that it completes or looks at.
        tells: somebody asked to be told of its completion.
        frees, allocates: it changes what the pool has, or looks at that.
    """

    everything: bool = False
    program: bool = False
    programs_memory: bool = False
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    record: int | None = None
    tells: bool = False
    frees: bool = False
    allocates: bool = False

    def meets(self, other: Footprint) -> bool:
        """Whether the order of the two matters."""
        if self.everything or other.everything:
            return True
        if self.program and (other.program or other.programs_memory):
            return True
        if other.program and self.programs_memory:
            return True
        if self.record is not None and self.record == other.record:
            return True
        if (
            (self.tells and other.tells)
            or (self.frees and other.allocates)
            or (self.allocates and other.frees)
        ):
            return True
        return (
            _overlap(self.writes, other.writes)
            or _overlap(self.writes, other.reads)
            or _overlap(self.reads, other.writes)
        )


def _overlap(some: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


class FootprintBook:
    """The footprints of one run: entries are noted as they are enqueued, when what they point at is known.

    Args:
        driver: the device.
    """

    def __init__(self, driver: HostDriver) -> None:
        self._driver = driver
        self._of: dict[int, tuple[Entry, Footprint]] = {}  # by identity, so the entries are kept
        self._record_numbers: dict[int, int] = {}

    def note(self, entry: Entry) -> None:
        """`entry` is about to be enqueued."""
        found = Footprint()
        if entry.completes is not None:
            found.record = self._record_numbers.setdefault(id(entry.completes), len(self._record_numbers))
        self._add(found, entry)
        found.programs_memory = any(end > _STAGING for _, end in (*found.reads, *found.writes))
        self._of[id(entry)] = (entry, found)

    def entry(self, entry: Entry) -> Footprint:
        """Of each step of it."""
        found = self._of[id(entry)][1]
        if isinstance(entry, EventRecord):
            found.tells = bool(entry.callbacks)
        return found

    def call(self, subject: object) -> Footprint:
        """Of a call of the program that is about `subject` (see `SeededEngine`), and of what the program does then."""
        if subject is None:
            return Footprint(program=True)
        if isinstance(subject, EventRecord):
            return Footprint(program=True, record=self._record_numbers.get(id(subject)))
        if subject is self._driver.pool:
            return Footprint(program=True, allocates=True)
        return Footprint(program=True, everything=True)

    def _add(self, found: Footprint, entry: Entry) -> None:
        match entry:
            case EventRecord() | HandOnEntry():
                pass
            case CopyEntry():
                self._touch(found, found.reads, entry.src, entry.size_bytes)
                self._touch(found, found.writes, entry.dst, entry.size_bytes)
            case FillEntry():
                self._touch(found, found.writes, entry.dst, entry.count * entry.pattern.itemsize)
            case ConvertEntry():
                self._touch(found, found.reads, entry.src, entry.count * entry.src_dtype.itemsize)
                self._touch(found, found.writes, entry.dst, entry.count * entry.dst_dtype.itemsize)
            case StridedCopyEntry():
                shape, size = entry.shape, entry.itemsize
                self._touch(found, found.reads, *_extent(entry.src, entry.src_strides, shape, size))
                self._touch(found, found.writes, *_extent(entry.dst, entry.dst_strides, shape, size))
            case AllocateEntry():
                self._touch(found, found.writes, entry.address, entry.size_bytes)
            case FreeEntry():
                found.frees = True
                for address, size in entry.ticket.pieces:
                    self._touch(found, found.writes, address, size)
            case LaunchEntry():
                self._add_launch(found, entry.launch.arguments)
            case GraphEntry():
                for part in entry.entries:
                    self._add(found, part)
            case ConditionalEntry():
                self._touch(found, found.reads, entry.predicate, entry.dtype.itemsize)
                for part in itertools.chain(*entry.bodies):
                    self._add(found, part)
            case _:
                found.everything = True

    def _add_launch(self, found: Footprint, arguments: bytes) -> None:
        """All that the argument block points at."""
        memory = self._driver.memory
        pointed = False
        for address in np.frombuffer(arguments[: len(arguments) // 8 * 8], np.uint64).tolist():
            if memory.contains(address):
                start, end = self._driver.pool.allocation_at(address) or (
                    memory.base,
                    memory.base + memory.size_bytes,
                )
            elif (block := memory.block_of(address)) is not None:
                start, end = block.start, block.end
            else:
                continue
            self._touch(found, found.writes, start, end - start)
            pointed = True
        found.everything |= not pointed

    def _touch(self, found: Footprint, ranges: list[tuple[int, int]], address: int, size: int) -> None:
        memory = self._driver.memory
        if memory.contains(address):
            start = address - memory.base
        else:
            for number, (base, extent) in enumerate(self._driver.pinned_ranges()):
                if base <= address < base + extent:
                    start = _STAGING + (number << 40) + address - base
                    break
            else:
                found.everything = True
                return
        ranges.append((start, start + size))


def _extent(address: int, strides: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """(lowest address, size) of what a strided array covers."""
    spans = [stride * (n - 1) for stride, n in zip(strides, shape)]
    below = sum(span for span in spans if span < 0)
    return address + below, sum(span for span in spans if span > 0) - below + itemsize
