"""What kernels take with `malloc` and give back with `free`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import OutOfMemoryError

if TYPE_CHECKING:
    from .._memory import HostMemory

__all__ = ["DeviceHeap"]

_LIMIT_BYTES = 8 << 20
"""CUDA's default for `cudaLimitMallocHeapSize`."""


class DeviceHeap:
    """The heap of one loaded module: what a kernel leaves there is there for the next one, until `close`."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._sizes: dict[int, int] = {}
        self._used = 0

    def allocate(self, size_bytes: int) -> int:
        """Memory, not cleared; 0 for no bytes, and when the heap or the device has no room."""
        size = -(-size_bytes // 16) * 16
        if not size or self._used + size > _LIMIT_BYTES:
            return 0
        try:
            address = self._memory.allocate(size_bytes)
        except OutOfMemoryError:
            return 0
        self._sizes[address] = size
        self._used += size
        return address

    def release(self, address: int) -> bool:
        """Give back what `allocate` returned; whether it was that."""
        size = self._sizes.pop(address, None)
        if size is None:
            return False
        self._used -= size
        self._memory.release(address)
        return True

    def close(self) -> None:
        """Give everything back."""
        for address in list(self._sizes):
            self.release(address)
