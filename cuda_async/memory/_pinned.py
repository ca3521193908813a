"""Page-locked staging memory, cached in power-of-two sizes.

The driver copies asynchronously only from and to pinned memory, and allocating it takes milliseconds, so
blocks are kept. A `PinnedBlock` goes back to its pool when its last reference goes: submissions hold one
until the device has passed the copy, and a NumPy array made on it holds one as its base.

The finalizer may run on any thread at any moment, so it only appends to a deque. Arrays may outlive the device: what
they held goes back to the driver when the next pool takes new memory, or is left too (`free_left_behind`).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CudaAsyncError

if TYPE_CHECKING:
    from ..driver import Driver

__all__ = ["PinnedBlock", "PinnedPool", "free_left_behind"]

SMALLEST_BYTES = 4096
SLAB_BYTES = 1 << 20
"""Small blocks are cut from slabs of this size: one driver call serves many."""


class PinnedBlock:
    """`capacity_bytes` of pinned memory at `address`."""

    __slots__ = ("__weakref__", "_pool", "address", "capacity_bytes")

    def __init__(self, pool: PinnedPool, address: int, capacity_bytes: int) -> None:
        self.address = address
        self.capacity_bytes = capacity_bytes
        self._pool = pool  # last: see __del__

    def __del__(self) -> None:
        # At the end of the process the globals of this module may be gone.
        pool: PinnedPool | None = getattr(self, "_pool", None)
        if pool is not None:  # no interrupt came before it was made
            pool._returned.append((self.capacity_bytes, self.address))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A NumPy array on this memory; it keeps the block alive."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        raw = (ctypes.c_ubyte * size).from_address(self.address)
        raw._block = self  # type: ignore[attr-defined]  # ctypes arrays carry attributes
        return np.frombuffer(memoryview(raw), dtype=dtype).reshape(shape) if size else np.empty(shape, dtype)


class PinnedPool:
    """The pinned memory of one device's driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._free: dict[int, list[int]] = {}
        self._slabs: dict[int, list[int]] = {}
        """What the driver gave, by the size of the blocks that each was cut into."""
        self._returned: deque[tuple[int, int]] = deque()
        self._is_left = False
        self.reserved_bytes = 0

    @staticmethod
    def capacity_for(size_bytes: int) -> int:
        """The block size that serves a request."""
        return max(SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length()) if size_bytes else SMALLEST_BYTES

    def take_cached(self, size_bytes: int) -> PinnedBlock | None:
        """A cached block, or None when one would have to be allocated. Never slow."""
        capacity = self.capacity_for(size_bytes)
        with self._lock:
            self._collect()
            blocks = self._free.get(capacity)
            if blocks:
                return PinnedBlock(self, blocks.pop(), capacity)
        return None

    def take(self, size_bytes: int) -> PinnedBlock:
        """A block; calls the driver when none is cached, which is slow: not on an event loop's thread."""
        block = self.take_cached(size_bytes)
        if block is not None:
            return block
        capacity = self.capacity_for(size_bytes)
        slab = max(capacity, SLAB_BYTES)
        free_left_behind()
        base = self._driver.pinned_alloc(slab)  # outside the lock, which event loops take
        with self._lock:
            self.reserved_bytes += slab
            self._slabs.setdefault(capacity, []).append(base)
            blocks = self._free.setdefault(capacity, [])
            blocks.extend(range(base, base + slab, capacity))
            block = PinnedBlock(self, blocks.pop(), capacity)
        if self._is_left:  # by another thread, meanwhile
            _left.append(self)
        return block

    def trim(self) -> None:
        """Give cached memory back to the driver: each slab of which all blocks have come back. Slow."""
        with self._lock:
            self._collect()
            released = [base for capacity in self._slabs for base in self._take_whole_slabs(capacity)]
        for base in released:
            self._driver.pinned_free(base)

    def leave(self) -> None:
        """The device is closed, and past all copies. What is in use still goes back later."""
        self._is_left = True
        _left.append(self)
        free_left_behind()

    def _take_whole_slabs(self, capacity: int) -> list[int]:
        """Lock held: the slabs of such blocks that nobody has a block of, which are forgotten."""
        size = max(capacity, SLAB_BYTES)
        free = set(self._free.get(capacity, ()))
        whole = [
            base for base in self._slabs[capacity] if free.issuperset(range(base, base + size, capacity))
        ]
        gone = {address for base in whole for address in range(base, base + size, capacity)}
        self._free[capacity] = [address for address in self._free.get(capacity, ()) if address not in gone]
        self._slabs[capacity] = [base for base in self._slabs[capacity] if base not in gone]
        self.reserved_bytes -= size * len(whole)
        return whole

    def _collect(self) -> None:
        returned = self._returned
        while returned:
            capacity, address = returned.popleft()
            self._free.setdefault(capacity, []).append(address)


_left: list[PinnedPool] = []
"""Of devices that are closed, and whose memory somebody still has; one may be there twice."""


def free_left_behind() -> None:
    """Give back what came back to pools whose device is closed; where that fails, it is nobody's error. May be slow."""
    for pool in list(_left):
        with contextlib.suppress(CudaAsyncError):
            pool.trim()
        if not pool.reserved_bytes:
            with contextlib.suppress(ValueError):  # another thread has seen it too
                _left.remove(pool)
            if pool.reserved_bytes:  # since then, by a third one
                _left.append(pool)
