"""Free address ranges: best fit, with neighbours joined.

Ranges never touch each other: adding one joins it with the free ranges that end where it starts and start
where it ends. A list sorted by (size, start) answers "the smallest range that is large enough" by
bisection; two dictionaries find the neighbours. Not locked: the owner holds a lock.
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
        before = self._start_of_end.get(start, start)
        after = self._size_at.get(end, 0)
        self.total_bytes += size
        old = [(s, n) for s, n in ((before, start - before), (end, after)) if n]
        self._replace(old, [(before, end + after - before)])

    def take(self, size: int, alignment: int = 1) -> int | None:
        """Cut `size` bytes from the start of the smallest range that fits; None when nothing does."""
        position = bisect_left(self._by_size, (size, 0))
        while position < len(self._by_size):
            have, start = self._by_size[position]
            padding = -start % alignment
            if padding + size <= have:
                behind = start + padding + size
                left = [(s, n) for s, n in ((start, padding), (behind, start + have - behind)) if n]
                self.total_bytes -= size
                self._replace([(start, have)], left)
                return start + padding
            position += 1
        return None

    def take_range(self, start: int, size: int) -> None:
        """Remove exactly the free range [start, start + size)."""
        assert self._size_at[start] == size
        self._remove(start, size)
        self.total_bytes -= size

    def _replace(self, old: list[tuple[int, int]], new: list[tuple[int, int]]) -> None:
        """Put ranges, as (start, size), in the place of others; all of them, should an interrupt come."""
        try:
            for start, size in old:
                self._remove(start, size)
            for start, size in new:
                self._insert(start, size)
        except KeyboardInterrupt:
            for start, size in old:
                if self._size_at.get(start) == size:
                    self._remove(start, size)
            for start, size in new:
                if self._size_at.get(start) != size:
                    self._insert(start, size)
            raise

    def _insert(self, start: int, size: int) -> None:
        self._size_at[start] = size
        self._start_of_end[start + size] = start
        insort(self._by_size, (size, start))  # the last call: an interrupt leaves nothing half done

    def _remove(self, start: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._size_at[start]
        del self._start_of_end[start + size]
