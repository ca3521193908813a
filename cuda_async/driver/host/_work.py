"""The work that streams of a host device do: launches, copies, fills, conversions, allocation and free.

Large ones go in pieces, one per step. Every piece looks its memory up anew, so memory that another stream
frees in the middle, without being ordered against this work, is noticed. NumPy releases the interpreter
lock while it moves a piece.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CudaAsyncError
from .._protocol import HostFunction, HostLaunch
from ._convert import convert_elements
from ._entries import Entry, EventRecord
from ._memory import Access, HostMemory, memory_array, memory_window, note_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from .._arguments import DeclaredUses
    from ._pool import FreeTicket, Pool

__all__ = [
    "AllocateEntry",
    "ConvertEntry",
    "CopyEntry",
    "FillEntry",
    "FreeEntry",
    "LaunchEntry",
    "StridedCopyEntry",
]

_PIECE_BYTES = 4 << 20
_PIECE_ELEMENTS = 256 << 10
"""For work done element by element: 1 to 2 ms."""


class LaunchEntry(Entry):
    """A kernel. `declared` is what it was told it may touch, on a device that checks."""

    __slots__ = ("declared", "function", "kernel", "launch")

    def __init__(self, function: HostFunction, launch: HostLaunch) -> None:
        self.function = function
        self.launch = launch
        self.kernel = function.info.name
        self.declared: DeclaredUses | None = None

    def start(self) -> Iterator[None]:
        return iter(self.function.start(self.launch))


class CopyEntry(Entry):
    """`size_bytes` bytes from `src` to `dst`, on any device or pinned; they may overlap."""

    __slots__ = ("dst", "memory", "size_bytes", "src")

    def __init__(self, memory: HostMemory, dst: int, src: int, size_bytes: int) -> None:
        self.memory = memory
        self.dst = dst
        self.src = src
        self.size_bytes = size_bytes

    def start(self) -> Iterator[None] | None:
        if self.size_bytes <= _PIECE_BYTES:
            self._copy(0, self.size_bytes)
            return None
        return self._steps()

    def _steps(self) -> Iterator[None]:
        offsets = range(0, self.size_bytes, _PIECE_BYTES)
        # Towards higher addresses the source goes first from the end, or it would be overwritten.
        for offset in reversed(offsets) if self.dst > self.src else offsets:
            self._copy(offset, min(_PIECE_BYTES, self.size_bytes - offset))
            yield

    def _copy(self, offset: int, size: int) -> None:
        source = memory_window(self.memory, self.src + offset, size, "read")
        np.copyto(memory_window(self.memory, self.dst + offset, size, "write"), source)


class StridedCopyEntry(Entry):
    """An N-d array, element by element; source and destination do not overlap."""

    __slots__ = ("dst", "dst_strides", "itemsize", "memory", "shape", "src", "src_strides")

    def __init__(
        self,
        memory: HostMemory,
        dst: int,
        dst_strides: Sequence[int],
        src: int,
        src_strides: Sequence[int],
        shape: Sequence[int],
        itemsize: int,
    ) -> None:
        self.memory = memory
        self.dst = dst
        self.dst_strides = tuple(dst_strides)
        self.src = src
        self.src_strides = tuple(src_strides)
        self.shape = tuple(shape)
        self.itemsize = itemsize

    def start(self) -> Iterator[None] | None:
        # Only whole elements move, so any type of that size and no alignment will do.
        dtype = _carrier(self.itemsize, (self.dst, self.src, *self.dst_strides, *self.src_strides))
        limit = max(1, min(_PIECE_BYTES // self.itemsize, _PIECE_ELEMENTS))
        note_array(self.memory, self.src, self.itemsize, self.shape, self.src_strides, "read")
        note_array(self.memory, self.dst, self.itemsize, self.shape, self.dst_strides, "write")
        if math.prod(self.shape) <= limit:
            self._copy(dtype, ...)
            return None
        return self._steps(dtype, limit)

    def _steps(self, dtype: np.dtype[Any], limit: int) -> Iterator[None]:
        for index in _pieces(self.shape, limit):
            self._copy(dtype, index)
            yield

    def _copy(self, dtype: np.dtype[Any], index: Any) -> None:
        source = self._array(self.src, self.src_strides, dtype, "read")
        np.copyto(self._array(self.dst, self.dst_strides, dtype, "write")[index], source[index])

    def _array(
        self, address: int, strides: tuple[int, ...], dtype: np.dtype[Any], access: Access
    ) -> NDArray[Any]:
        return memory_array(self.memory, address, dtype, self.shape, strides, access)


class FillEntry(Entry):
    """`count` copies of a pattern of 1, 2, 4 or 8 bytes."""

    __slots__ = ("count", "dst", "memory", "pattern")

    def __init__(self, memory: HostMemory, dst: int, pattern: bytes, count: int) -> None:
        self.memory = memory
        self.dst = dst
        self.pattern = np.frombuffer(pattern, f"u{len(pattern)}")
        self.count = count

    def start(self) -> Iterator[None] | None:
        size = self.count * self.pattern.itemsize
        if size <= _PIECE_BYTES:
            self._fill(0, size)
            return None
        return self._steps(size)

    def _steps(self, size: int) -> Iterator[None]:
        for offset in range(0, size, _PIECE_BYTES):
            self._fill(offset, min(_PIECE_BYTES, size - offset))
            yield

    def _fill(self, offset: int, size: int) -> None:
        window = memory_window(self.memory, self.dst + offset, size, "write")
        window.view(self.pattern.dtype)[:] = self.pattern


class ConvertEntry(Entry):
    """`count` elements of one type as another."""

    __slots__ = ("count", "dst", "dst_dtype", "memory", "src", "src_dtype")

    def __init__(
        self,
        memory: HostMemory,
        dst: int,
        dst_dtype: np.dtype[Any],
        src: int,
        src_dtype: np.dtype[Any],
        count: int,
    ) -> None:
        self.memory = memory
        self.dst = dst
        self.dst_dtype = dst_dtype
        self.src = src
        self.src_dtype = src_dtype
        self.count = count

    def start(self) -> Iterator[None] | None:
        if self.count <= _PIECE_ELEMENTS:
            self._convert(0, self.count)
            return None
        return self._steps()

    def _steps(self) -> Iterator[None]:
        for first in range(0, self.count, _PIECE_ELEMENTS):
            self._convert(first, min(_PIECE_ELEMENTS, self.count - first))
            yield

    def _convert(self, first: int, count: int) -> None:
        src = self.src + first * self.src_dtype.itemsize
        dst = self.dst + first * self.dst_dtype.itemsize
        note_array(self.memory, src, self.src_dtype.itemsize, (count,), (self.src_dtype.itemsize,), "read")
        note_array(self.memory, dst, self.dst_dtype.itemsize, (count,), (self.dst_dtype.itemsize,), "write")
        source = memory_array(self.memory, src, self.src_dtype, (count,), None, "read")
        target = memory_array(self.memory, dst, self.dst_dtype, (count,), None, "write")
        target[:] = convert_elements(source, self.dst_dtype)


class AllocateEntry(Entry):
    """Memory exists from here on."""

    __slots__ = ("address", "memory", "size_bytes")

    skippable = False
    immediate = True
    repeatable = True

    def __init__(self, memory: HostMemory, address: int, size_bytes: int) -> None:
        self.memory = memory
        self.address = address
        self.size_bytes = size_bytes

    def start(self) -> None:
        if not self.memory.is_live(self.address):  # an interrupted allocation is done again
            self.memory.activate(self.address, self.size_bytes)

    def abandon(self) -> None:
        self.start()


class FreeEntry(Entry):
    """Memory exists up to here."""

    __slots__ = ("address", "freed", "immediate", "is_over", "memory", "poison", "pool", "ticket")

    skippable = False
    repeatable = True

    def __init__(
        self,
        memory: HostMemory,
        pool: Pool,
        address: int,
        ticket: FreeTicket,
        freed: list[int] | None,
        *,
        poison: bool,
    ) -> None:
        self.memory = memory
        self.pool = pool
        self.address = address
        self.ticket = ticket
        self.freed = freed
        self.poison = poison
        self.immediate = not poison  # filling takes its time
        self.is_over = False

    @property
    def completes(self) -> EventRecord:
        return self.ticket.passed

    def start(self) -> None:
        # An interrupted free is done again: but once the pool has the address, its memory may be somebody else's.
        if not self.is_over:
            try:
                if self.memory.is_live(self.address):
                    self.memory.deactivate(self.address, poison=self.poison)
            except CudaAsyncError:
                self.pool.passed(self.ticket)
                raise
            self.is_over = True
        self.pool.passed(self.ticket)
        if self.freed is not None:
            self.freed.append(self.address)

    def abandon(self) -> None:
        self.start()


def _carrier(itemsize: int, offsets: Sequence[int]) -> np.dtype[Any]:
    """The widest plain type of `itemsize` bytes that addresses and strides are aligned to; else bytes."""
    if itemsize in (1, 2, 4, 8) and not any(offset % itemsize for offset in offsets):
        return np.dtype(f"u{itemsize}")
    return np.dtype(f"V{itemsize}")


def _pieces(shape: tuple[int, ...], limit: int) -> Iterator[tuple[Any, ...]]:
    """Cut an array into boxes of at most `limit` elements (one at least), in memory order."""
    axis, inner = 0, 1
    for n in shape:
        inner *= n
    if inner == 0:
        return
    while axis < len(shape) and inner > limit:
        inner //= shape[axis]
        axis += 1
    if axis == 0:
        yield (...,)
        return
    # Axes before axis - 1 one index at a time, axis - 1 in runs of several, the rest whole.
    rows = max(1, limit // inner)
    for outer in np.ndindex(*shape[: axis - 1]):
        for first in range(0, shape[axis - 1], rows):
            yield (*(slice(i, i + 1) for i in outer), slice(first, first + rows))
