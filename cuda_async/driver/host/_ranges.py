"""Free address ranges: best fit, with neighbours joined.

Ranges never touch each other: adding one joins it with the free ranges that end where it starts and start
where it ends. A list sorted by (size, start) answers "the smallest range that is large enough" by
bisection; two dictionaries find the neighbours. Not locked: the owner holds a lock. An interrupt on the main thread may
come between any two calls: then `take` has taken nothing, and `add` has added all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FreeRanges"]


class FreeRanges:
    """A set of disjoint, non-adjacent ranges of addresses."""

    __slots__ = ("_by_size", "_size_at", "_start_of_end", "total_bytes")

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._by_size)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, size) of each range, in no particular order."""
        return iter(list(self._size_at.items()))

    def largest(self) -> tuple[int, int]:
        """(size, start) of the largest range; there is one."""
        return self._by_size[-1]

    def smallest(self, size: int) -> int | None:
        """Size of the smallest range of at least `size` bytes."""
        position = bisect_left(self._by_size, (size, 0))
        return self._by_size[position][0] if position < len(self._by_size) else None

    def add(self, start: int, size: int) -> None:
        """Add [start, start + size), which overlaps no free range."""
        end = start + size
        before = after = None
        try:
            before = self._start_of_end.get(start)
            after = self._size_at.get(end)
            if before is not None:
                self._remove(before, start - before)
            if after is not None:
                self._remove(end, after)
            first = start if before is None else before
            self._insert(first, end + (after or 0) - first)
            self.total_bytes += size
        except BaseException:
            parts = {**self._size_at, start: size}
            if before is not None:
                parts[before] = start - before
            if after is not None:
                parts[end] = after
            self._rebuild(parts, joined=True)
            raise

    def take(self, size: int, alignment: int = 1) -> int | None:
        """Cut `size` bytes from the start of the smallest range that fits; None when nothing does."""
        position = bisect_left(self._by_size, (size, 0))
        while position < len(self._by_size):
            have, start = self._by_size[position]
            padding = -start % alignment
            if padding + size <= have:
                rest = start + padding + size
                try:
                    self._remove(start, have)
                    if padding:
                        self._insert(start, padding)
                    if padding + size < have:
                        self._insert(rest, have - padding - size)
                except BaseException:
                    self._size_at.pop(rest, None)
                    self._rebuild({**self._size_at, start: have})
                    raise
                self.total_bytes -= size
                return start + padding
            position += 1
        return None

    def take_range(self, start: int, size: int) -> None:
        """Remove exactly the free range [start, start + size)."""
        assert self._size_at[start] == size
        try:
            self._remove(start, size)
        except BaseException:
            self._rebuild({**self._size_at, start: size})
            raise
        self.total_bytes -= size

    def _rebuild(self, size_at: dict[int, int], joined: bool = False) -> None:
        """After an interrupt: these ranges are all there are, `joined` where they may touch or lie in one another."""
        if joined:
            ranges, size_at = sorted(size_at.items()), {}
            last = -1
            for start, size in ranges:
                if last in size_at and start <= last + size_at[last]:
                    size_at[last] = max(size_at[last], start + size - last)
                else:
                    size_at[start] = size
                    last = start
        self._size_at = size_at
        self._by_size = sorted((size, start) for start, size in size_at.items())
        self._start_of_end = {start + size: start for start, size in size_at.items()}
        self.total_bytes = sum(size_at.values())

    def _insert(self, start: int, size: int) -> None:
        self._size_at[start] = size
        insort(self._by_size, (size, start))
        self._start_of_end[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._size_at[start]
        del self._start_of_end[start + size]
