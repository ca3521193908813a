"""Live blocks of memory, and the block an address lies in.

A `Block` is one allocation that exists now: a range of real process memory with NumPy windows onto it. A
`BlockTable` keeps disjoint blocks sorted by address.

Finding is lock-free and may be wrong while another thread changes the table; what it finds is only a
candidate, which the caller checks against the block's bounds and its `live` flag. A miss is decided under
the table's lock.

The lock is reentrant: finalizers change tables (of foreign memory), and may run in the middle of any method.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ._fork import Level, fork_safe_lock

if TYPE_CHECKING:
    from .check import Shadow

__all__ = ["Access", "Block", "BlockTable", "RawMemory", "Span", "Window"]

Access = Literal["read", "write"]
Span = tuple[int, int]
"""Addresses from one up to another."""

# A typed array whose element type is only known at run time, and the address of its first element.
Window = tuple[NDArray[Any], int]


class RawMemory:
    """Process memory at an address, as something `np.asarray` takes; keeps `owner` alive."""

    def __init__(self, address: int, size_bytes: int, owner: object, *, writable: bool = True) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, not writable),
            "shape": (size_bytes,),
            "typestr": "|u1",
        }


class Block:
    """One live range of memory, [start, end).

    Attributes:
        writable: all of it. writable_spans: the parts that are, by address.
    """

    __slots__ = (
        "_windows",
        "bytes",
        "end",
        "live",
        "shadow",
        "start",
        "what",
        "writable",
        "writable_spans",
    )

    def __init__(
        self,
        start: int,
        memory: NDArray[np.uint8],
        what: str = "allocation",
        *,
        writable_spans: tuple[Span, ...] | None = None,
    ) -> None:
        self.start = start
        self.end = start + memory.size
        self.bytes = memory
        self.what = what
        self.writable_spans = ((start, self.end),) if writable_spans is None else writable_spans
        self.writable = self.writable_spans == ((start, self.end),)
        self.live = True
        self.shadow: Shadow | None = None  # the checking mode's
        self._windows: dict[np.dtype[Any], Window] = {}

    def allows(self, access: Access, start: int, end: int) -> bool:
        """Whether [start, end), which lies in it, may be accessed so."""
        return (
            access == "read" or self.writable or any(a <= start and end <= b for a, b in self.writable_spans)
        )

    def window(self, dtype: np.dtype[Any]) -> Window:
        """The block as whole, aligned elements of `dtype`, and the address of the first of them."""
        window = self._windows.get(dtype)
        if window is None:
            skip = -self.start % dtype.itemsize
            whole = max(0, self.bytes.size - skip) // dtype.itemsize * dtype.itemsize
            elements = self.bytes[skip : skip + whole] if whole else self.bytes[:0]
            window = self._windows[dtype] = (elements.view(dtype), self.start + skip)
        return window


class BlockTable:
    """Disjoint live blocks, sorted by address."""

    __slots__ = ("_by_start", "_changes", "_snapshot", "_starts", "lock")

    def __init__(self, level: Level = Level.MEMORY) -> None:
        self.lock = fork_safe_lock(level)
        self._starts: list[int] = []
        self._by_start: dict[int, Block] = {}
        self._snapshot: list[Block] | None = None
        self._changes = 0

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, block: Block) -> None:
        with self.lock:
            assert block.start not in self._by_start
            self._changes += 1
            self._snapshot = None
            self._by_start[block.start] = block
            try:
                insort(self._starts, block.start)
            except BaseException:  # an interrupt, in which this is undone
                del self._by_start[block.start]
                self._starts = sorted(self._by_start)
                raise

    def remove(self, start: int) -> Block | None:
        """Take out the block that starts at `start`; it is no longer live. None when there is none."""
        with self.lock:
            block = self._by_start.get(start)
            if block is not None:
                position = bisect_right(self._starts, start) - 1
                # From here on nothing is called: an interrupt comes before all of it, or after.
                block.live = False
                del self._starts[position]
                del self._by_start[start]
                self._changes += 1
                self._snapshot = None
            return block

    def candidate(self, address: int) -> Block | None:
        """The block that probably holds `address`: check it. Takes no lock."""
        starts = self._starts
        try:
            return self._by_start.get(starts[bisect_right(starts, address) - 1])
        except IndexError:  # empty, or it shrank under our hands
            return None

    def find(self, address: int) -> Block | None:
        """The live block that holds `address`, decided under the lock."""
        with self.lock:
            block = self.candidate(address)
            return block if block is not None and block.start <= address < block.end else None

    def overlapping(self, start: int, end: int) -> list[Block]:
        """The live blocks that have bytes in [start, end), by address."""
        with self.lock:
            starts = self._starts
            first = max(0, bisect_right(starts, start) - 1)
            last = bisect_left(starts, end)
            found = (self._by_start.get(place) for place in starts[first:last])
            return [block for block in found if block is not None and block.end > start]

    def starting_at(self, start: int) -> Block | None:
        return self._by_start.get(start)

    def snapshot(self) -> list[Block]:
        """All live blocks by address. Do not change the list."""
        with self.lock:
            while True:
                blocks = self._snapshot
                if blocks is not None:
                    return blocks
                changes = self._changes
                blocks = [self._by_start[start] for start in list(self._starts) if start in self._by_start]
                if changes == self._changes:  # no finalizer came between
                    self._snapshot = blocks
