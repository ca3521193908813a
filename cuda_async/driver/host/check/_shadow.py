"""What is known of each place of an allocation: who wrote it last, and who has read it since.

A shadow has a cell per `unit` bytes: a power of two, at first what the first access allows (16 at most), halved when a
later one needs it finer. A cell holds the number of the last write and of the last read (0: none), and who of that
kernel's threads made them. Arrays are made when they are first needed, of pages that come as they are touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._clocks import Work

__all__ = ["Cells", "Picked", "Shadow", "Strip", "distinct"]

_LARGEST_UNIT = 16


class Cells(Protocol):
    """Some cells of a shadow."""

    def get(self, array: NDArray[Any]) -> NDArray[Any]:
        """What these cells have in one of the shadow's arrays."""
        ...

    def put(self, array: NDArray[Any], value: Any) -> None:
        """Give them something."""
        ...

    def place(self, index: int) -> int:
        """The cell that is the n-th of `get`, in flat order."""
        ...


class Strip:
    """Cells in a regular pattern: a view of the array."""

    __slots__ = ("_shape", "_start", "_strides")

    def __init__(self, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self._start = start
        self._shape = shape
        self._strides = strides

    def get(self, array: NDArray[Any]) -> NDArray[Any]:
        item = array.itemsize
        strides = tuple([s * item for s in self._strides])
        return np.ndarray(self._shape, array.dtype, array.data, self._start * item, strides)

    def put(self, array: NDArray[Any], value: Any) -> None:
        self.get(array)[...] = value

    def place(self, index: int) -> int:
        place = self._start
        for along, stride in zip(np.unravel_index(index, self._shape), self._strides):
            place += int(along) * stride
        return place


class Picked:
    """Cells by their numbers, in any order."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers

    def get(self, array: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = array[self.numbers]
        return found

    def put(self, array: NDArray[Any], value: Any) -> None:
        array[self.numbers] = value

    def place(self, index: int) -> int:
        return int(self.numbers.reshape(-1)[index])


class Shadow:
    """The shadow of one allocation, or of the shared memory of some blocks.

    Attributes:
        start, size_bytes: the memory. what: it in words.
        given: it was written before we knew it: by the program, or by another library.
        born: what allocated it, which comes before every access; None for memory that was always there.
        unit: bytes of a cell.
        write, read: numbers of the last write, and of the reads since. write_who, read_who: who made them.
    """

    __slots__ = (
        "__weakref__",
        "born",
        "given",
        "is_pool",
        "read",
        "read_who",
        "size_bytes",
        "start",
        "unit",
        "what",
        "write",
        "write_who",
    )

    def __init__(
        self,
        start: int,
        size_bytes: int,
        what: str,
        *,
        given: bool,
        born: Work | None = None,
        is_pool: bool = False,
    ) -> None:
        self.start = start
        self.size_bytes = size_bytes
        self.what = what
        self.given = given
        self.born = born
        self.is_pool = is_pool
        self.unit = 0
        empty = np.empty(0, np.uint32)
        self.write: NDArray[np.uint32] = empty
        self.read: NDArray[np.uint32] = empty
        self.write_who: NDArray[np.int32] = empty.view(np.int32)
        self.read_who: NDArray[np.int32] = empty.view(np.int32)

    def describe(self, offset: int | None) -> str:
        """It, or a byte of it, in words."""
        extent = f"the {self.what} of {self.size_bytes} bytes at {self.start:#x}"
        return extent if offset is None else f"byte {offset} of {extent}"

    def strip(self, address: int, shape: Sequence[int], strides_bytes: Sequence[int], item: int) -> Strip:
        """The cells of a strided array of elements of `item` bytes."""
        offset = address - self.start
        combined = offset | item
        for n, stride in zip(shape, strides_bytes):
            if n > 1:
                combined |= abs(stride)
        self._refine(combined)
        unit = self.unit
        inner = max(1, item // unit)
        cells = [0 if n <= 1 else stride // unit for n, stride in zip(shape, strides_bytes)]
        if inner == 1:
            return Strip(offset // unit, tuple(shape), tuple(cells))
        return Strip(offset // unit, (*shape, inner), (*cells, 1))

    def range(self, address: int, size_bytes: int) -> Strip:
        """The cells of a range of addresses."""
        offset = address - self.start
        self._refine(offset | size_bytes)
        return Strip(offset // self.unit, (size_bytes // self.unit,), (1,))

    def picked(self, offsets: NDArray[np.int64], item: int) -> tuple[Picked, int]:
        """The cells of elements of `item` bytes at byte offsets, and how many each has; those come side by side."""
        combined = int(np.bitwise_or.reduce(offsets.reshape(-1))) | item
        self._refine(combined)
        cells = offsets >> (self.unit.bit_length() - 1)
        each = item // self.unit
        if each > 1:
            cells = (cells[..., None] + np.arange(each)).reshape(-1)
        return Picked(cells), each

    def everything(self) -> Strip | None:
        """All cells; None when nothing has touched any."""
        return Strip(0, (self.write.size,), (1,)) if self.unit else None

    def _refine(self, combined: int) -> None:
        """Make cells small enough for offsets and sizes that are all multiples of the lowest bit of `combined`."""
        unit = min(combined & -combined, _LARGEST_UNIT)
        if not self.unit:
            self.unit = unit
            count = -(-self.size_bytes // unit)
            self.write, self.read = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
            self.write_who, self.read_who = np.zeros(count, np.int32), np.zeros(count, np.int32)
        elif unit < self.unit:
            parts = self.unit // unit
            count = -(-self.size_bytes // unit)
            self.unit = unit
            self.write, self.read = (np.repeat(a, parts)[:count] for a in (self.write, self.read))
            self.write_who, self.read_who = (
                np.repeat(a, parts)[:count] for a in (self.write_who, self.read_who)
            )


def distinct(numbers: NDArray[np.uint32]) -> list[int]:
    """The numbers there are, each once."""
    if not numbers.size:
        return []
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return [low]
    if high - low < 4 * numbers.size + 4096:
        there = np.zeros(high - low + 1, np.bool_)
        there[(numbers - np.uint32(low)).reshape(-1)] = True
        return [low + int(n) for n in np.flatnonzero(there)]
    return [int(n) for n in np.unique(numbers)]
