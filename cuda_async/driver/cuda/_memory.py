"""Memory: the device's own pool, pinned host memory, copies, fills and conversions."""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ContextError, OutOfMemoryError
from .._arguments import ArgumentBlock
from .._protocol import FunctionHandle, PoolStatistics
from ._condition import condition_kernel
from ._convert import check_convertible, convert_kernel
from ._errors import INVALID_VALUE, OUT_OF_MEMORY, invalid_value
from ._kernel_text import BLOCK_THREADS, KernelText, module_text
from ._modules import ModuleCalls
from ._strided import CopyPlan, fill_kernel, plan_copy, split_axes, strided_arguments, strided_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._protocol import StreamHandle

__all__ = ["MemoryCalls"]

KEEP_EVERYTHING = (1 << 64) - 1
HOST_ALLOC_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE too
MADE_BY_PAGES_BYTES = 8 << 20
# A 2-D copy is done by a copy engine, row by row; below this a kernel is faster.
LONG_ROW_BYTES = 1024
MAX_PITCH_BYTES = (1 << 31) - 1
NARROW_INDEX_UNITS = 1 << 32
BLOCKS_PER_MULTIPROCESSOR = 16


class MemoryCalls(ModuleCalls):
    """The part of the CUDA driver that knows memory."""

    def __init__(self, api: Any, ordinal: int, context: Any, device: Any) -> None:
        super().__init__(api, ordinal, context)
        self._device = device
        self._pool = self._make_pool()
        self._cuMemAllocFromPoolAsync = api.cuMemAllocFromPoolAsync
        self._cuMemFreeAsync = api.cuMemFreeAsync
        self._cuMemcpyHtoDAsync = api.cuMemcpyHtoDAsync
        self._cuMemcpyDtoHAsync = api.cuMemcpyDtoHAsync
        self._cuMemcpyDtoDAsync = api.cuMemcpyDtoDAsync
        self._pages: dict[int, mmap.mmap] = {}  # pinned memory that was not made by cuMemHostAlloc
        self._kernels: dict[tuple[object, ...], tuple[FunctionHandle, KernelText]] = {}
        self._kernels_lock = threading.Lock()

    # -- the pool

    def _make_pool(self) -> Any:
        """A pool of our own: its statistics are ours alone, and no other library's settings touch it."""
        api = self._api
        location = api.CUmemLocation()
        location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self.ordinal
        properties = api.CUmemPoolProps()
        properties.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location = location
        pool = self._call("cuMemPoolCreate", properties)
        self._set_release_threshold(pool, KEEP_EVERYTHING)
        return pool

    def _set_release_threshold(self, pool: Any, size_bytes: int) -> None:
        attribute = self._api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call("cuMemPoolSetAttribute", pool, attribute, self._api.cuuint64_t(size_bytes))

    def memory_alloc_async(self, size_bytes: int, stream: StreamHandle) -> int:
        """Stream-ordered allocation of `size_bytes` > 0 from the pool; aligned to 256 bytes.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        if size_bytes > self.properties.total_memory_bytes:
            # the driver would map all there is before it says so
            raise self._out_of_memory("cuMemAllocFromPoolAsync", size_bytes)
        code, address = self._cuMemAllocFromPoolAsync(size_bytes, self._pool, self._streams[stream])
        if code:
            if int(code) == OUT_OF_MEMORY:
                raise self._out_of_memory("cuMemAllocFromPoolAsync", size_bytes)
            self._fail("cuMemAllocFromPoolAsync", code)
        return int(address)

    def pointer_device(self, address: int) -> int:
        """The number of the device whose memory, of whatever library, `address` is in.

        Raises:
            ContextError: it is no device memory.
        """
        attribute = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        code, ordinal = self._api.cuPointerGetAttribute(attribute, address)
        if code:
            if int(code) == INVALID_VALUE:
                raise ContextError(f"{address:#x} is not in the memory of any CUDA device")
            self._fail("cuPointerGetAttribute", code)
        return int(ordinal)

    def memory_free_async(self, address: int, stream: StreamHandle) -> None:
        """Free once `stream` has got here."""
        code = self._cuMemFreeAsync(address, self._streams[stream])[0]
        if code:
            self._fail("cuMemFreeAsync", code)

    def _make_room(self) -> bool:
        """Give cached memory back to the system; False where there is no pool yet."""
        pool = getattr(self, "_pool", None)
        return pool is not None and not self._api.cuMemPoolTrimTo(pool, 0)[0]

    def _out_of_memory(self, call: str, size_bytes: int = 0) -> OutOfMemoryError:
        """The error of a call for which the device's memory did not suffice; `size_bytes` where it asks for some."""
        if not hasattr(self, "properties"):  # it is being opened
            return super()._out_of_memory(call, size_bytes)
        total = self.properties.total_memory_bytes
        attributes = self._api.CUmemPool_attribute
        # By themselves: what these calls find no memory for shall not end here again.
        used = self._number("cuMemPoolGetAttribute", self._pool, attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        reserved = self._number(
            "cuMemPoolGetAttribute", self._pool, attributes.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        )
        free = self._number("cuMemGetInfo")
        if size_bytes:
            what, todo = f"{size_bytes} bytes do not fit", "free tensors, or use smaller ones"
        else:
            what = f"the driver found no memory for {call}"
            todo = (
                "free tensors, or other programs' memory, and try again; what was cached has been given back"
            )
        return OutOfMemoryError(
            f"{self.label}: {what}: {used} bytes are in use and {reserved - used} "
            f"cached in the pool, {free} of the device's {total} bytes are free; {todo}",
            requested_bytes=size_bytes,
            used_bytes=used,
            limit_bytes=total,
        )

    def _number(self, name: str, *arguments: Any) -> int:
        """What a call answers first; 0 where it fails."""
        code, *values = getattr(self._api, name)(*arguments)
        return 0 if code else int(values[0])

    def pool_trim(self, keep_bytes: int = 0) -> None:
        """Give cached, unused memory back to the system, down to `keep_bytes` reserved."""
        self._call("cuMemPoolTrimTo", self._pool, keep_bytes)

    def pool_set_release_threshold(self, size_bytes: int) -> None:
        """How much the pool may keep when a stream is synchronized; everything, unless this is called."""
        self._set_release_threshold(self._pool, min(size_bytes, KEEP_EVERYTHING))

    def pool_statistics(self) -> PoolStatistics:
        """The pool's counters."""

        def get(name: str) -> int:
            attribute = getattr(self._api.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
            return int(self._call("cuMemPoolGetAttribute", self._pool, attribute))

        return PoolStatistics(
            used_bytes=get("USED_MEM_CURRENT"),
            used_high_bytes=get("USED_MEM_HIGH"),
            reserved_bytes=get("RESERVED_MEM_CURRENT"),
            reserved_high_bytes=get("RESERVED_MEM_HIGH"),
        )

    # -- pinned memory

    def pinned_alloc(self, size_bytes: int) -> int:
        """Page-locked host memory for every device of the process. Slow.

        `cuMemHostAlloc` holds the process's memory map while it makes the pages, so any other thread that touches new
        memory stands still: 100 to 150 ms for 256 MiB on an H200's host. So large memory is made page by page and only
        then locked, which holds the map for 5 to 10 ms.
        """
        self.bind()
        if size_bytes >= MADE_BY_PAGES_BYTES:
            address = self._pin_pages(size_bytes)
            if address is not None:
                return address
        code, pinned = self._api.cuMemHostAlloc(size_bytes, HOST_ALLOC_PORTABLE)
        if code:
            if int(code) == OUT_OF_MEMORY:
                raise OutOfMemoryError(
                    f"{self.label}: the system cannot page-lock {size_bytes} bytes of host memory; use "
                    "smaller transfers, or raise the limit on locked memory (ulimit -l)",
                    requested_bytes=size_bytes,
                    used_bytes=0,
                    limit_bytes=0,
                )
            self._fail("cuMemHostAlloc", code)
        return int(pinned)

    def _pin_pages(self, size_bytes: int) -> int | None:
        """New pages, page-locked; None where that is not to be had. Shared ones, so that a fork copies none."""
        try:
            pages = mmap.mmap(-1, size_bytes)
        except OSError:
            return None
        view = np.frombuffer(pages, np.uint8)
        view[:: mmap.PAGESIZE] = 0
        address = int(view.ctypes.data)
        del view  # a map cannot be closed while there is one
        if self._api.cuMemHostRegister(address, size_bytes, HOST_ALLOC_PORTABLE)[0]:
            pages.close()
            return None
        self._pages[address] = pages
        return address

    def pinned_free(self, address: int) -> None:
        """Give page-locked memory back; no copy may use it any more."""
        pages = self._pages.pop(address, None)
        if pages is None:
            self._call("cuMemFreeHost", address)
            return
        self._call("cuMemHostUnregister", address)
        pages.close()

    # -- copies

    def copy_host_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """Copy from pinned host memory."""
        code = self._cuMemcpyHtoDAsync(dst, src, size_bytes, self._streams[stream])[0]
        if code:
            self._fail("cuMemcpyHtoDAsync", code)

    def copy_device_to_host_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """Copy to pinned host memory."""
        code = self._cuMemcpyDtoHAsync(dst, src, size_bytes, self._streams[stream])[0]
        if code:
            self._fail("cuMemcpyDtoHAsync", code)

    def copy_device_to_device_async(self, dst: int, src: int, size_bytes: int, stream: StreamHandle) -> None:
        """Copy on the device."""
        code = self._cuMemcpyDtoDAsync(dst, src, size_bytes, self._streams[stream])[0]
        if code:
            self._fail("cuMemcpyDtoDAsync", code)

    def copy_strided_async(
        self,
        dst: int,
        dst_strides_bytes: Sequence[int],
        src: int,
        src_strides_bytes: Sequence[int],
        shape: Sequence[int],
        itemsize: int,
        stream: StreamHandle,
    ) -> None:
        """Copy an N-d array element by element; see `_strided.py` for how."""
        plan = plan_copy(dst, dst_strides_bytes, src, src_strides_bytes, shape, itemsize)
        if plan is None:
            return
        self.bind()
        run = plan.run_bytes
        if run is not None:
            self.copy_device_to_device_async(plan.dst, plan.src, run, stream)
            return
        rows = plan.rows
        if rows is not None and rows[0] >= LONG_ROW_BYTES and self._fits_pitch(plan):
            self._copy_rows(plan, rows, stream)
            return
        for piece in split_axes(plan):
            self._copy_by_kernel(piece, stream)

    def _fits_pitch(self, plan: CopyPlan) -> bool:
        return max(plan.dst_strides[0], plan.src_strides[0]) <= MAX_PITCH_BYTES

    def _copy_rows(self, plan: CopyPlan, rows: tuple[int, int], stream: StreamHandle) -> None:
        copy = self._api.CUDA_MEMCPY2D()
        device = self._api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType = copy.dstMemoryType = device
        copy.srcDevice, copy.srcPitch = self._api.CUdeviceptr(plan.src), plan.src_strides[0]
        copy.dstDevice, copy.dstPitch = self._api.CUdeviceptr(plan.dst), plan.dst_strides[0]
        copy.WidthInBytes, copy.Height = rows
        self._call("cuMemcpy2DAsync", copy, self._streams[stream])

    def _copy_by_kernel(self, plan: CopyPlan, stream: StreamHandle) -> None:
        kernel = self._own_kernel(self._strided_key(plan))
        self._run_own(kernel, strided_arguments(plan), plan.count, stream)

    def _strided_key(self, plan: CopyPlan) -> tuple[object, ...]:
        return ("strided", plan.unit, plan.count >= NARROW_INDEX_UNITS)

    # -- fills and conversions

    def fill_async(self, dst: int, pattern: bytes, count: int, stream: StreamHandle) -> None:
        """Write `count` copies of a pattern of 1, 2, 4 or 8 bytes.

        Raises:
            DriverError: another size of pattern, or `dst` is not aligned to it.
        """
        size = len(pattern)
        if size not in (1, 2, 4, 8):
            raise invalid_value("fill", f"a pattern of {size} bytes; give 1, 2, 4 or 8")
        if dst % size or count < 0:
            raise invalid_value("fill", f"{count} times {size} bytes at {dst:#x}; align the address to them")
        if not count:
            return
        if size == 8 and pattern[:4] == pattern[4:]:
            size, pattern, count = 4, pattern[:4], 2 * count
        value = int.from_bytes(pattern, "little")
        if size < 8:
            self._call(f"cuMemsetD{8 * size}Async", dst, value, count, self._streams[stream])
            return
        self._run_own(self._own_kernel(("fill",)), [dst, value, count], count, stream)

    def convert_async(
        self,
        dst: int,
        dst_dtype: np.dtype[np.generic],
        src: int,
        src_dtype: np.dtype[np.generic],
        count: int,
        stream: StreamHandle,
    ) -> None:
        """Convert `count` contiguous elements; the results are `astype`'s (see `_convert.py`).

        Raises:
            DriverError: one of the types cannot be converted on the device.
        """
        dst_name, src_name = check_convertible(dst_dtype), check_convertible(src_dtype)
        if count < 0:
            raise invalid_value("convert", f"{count} elements")
        if not count:
            return
        if dst_name == src_name:
            self.bind()
            self.copy_device_to_device_async(dst, src, count * dst_dtype.itemsize, stream)
            return
        kernel = self._own_kernel(("convert", dst_name, src_name))
        self._run_own(kernel, [dst, src, count], count, stream)

    def convert_prepare(self, dst_dtype: np.dtype[np.generic], src_dtype: np.dtype[np.generic]) -> None:
        """Compile the conversion now, so that `convert_async` need not. Slow."""
        dst_name, src_name = check_convertible(dst_dtype), check_convertible(src_dtype)
        if dst_name != src_name:
            self._own_kernel(("convert", dst_name, src_name))

    # -- the kernels this driver brings

    def prepare(self) -> None:
        """Compile the kernels of fills and strided copies now: they have no call of their own for that. Slow."""
        self._own_kernel(("fill",))

    def _own_kernel(self, key: tuple[object, ...]) -> tuple[FunctionHandle, KernelText]:
        """A kernel by `("convert", dst, src)`, `("fill",)`, `("strided", unit, wide)` or `("condition", itemsize)`.

        Loaded on first use, by one thread while others wait.
        """
        found = self._kernels.get(key)
        if found is None:
            with self._kernels_lock:
                found = self._kernels.get(key)
                if found is None:
                    self._load_own(_kernels_with(key))
                    found = self._kernels[key]
        return found

    def _load_own(self, kernels: dict[tuple[object, ...], KernelText]) -> None:
        module = self.module_load(module_text(*kernels.values()).encode(), "kernels of cuda_async")
        for key, kernel in kernels.items():
            self._kernels[key] = (self.module_function(module, kernel.name), kernel)

    def _run_own(
        self,
        kernel: tuple[FunctionHandle, KernelText],
        values: list[int],
        count: int,
        stream: StreamHandle,
    ) -> None:
        function, blocks, arguments = self._own_launch(kernel, values, count)
        self._call(
            "cuLaunchKernel",
            *(self._functions[function], blocks, 1, 1, BLOCK_THREADS, 1, 1, 0),
            *(self._streams[stream], arguments.pointers_address, 0),
        )

    def _own_launch(
        self, kernel: tuple[FunctionHandle, KernelText], values: list[int], count: int
    ) -> tuple[FunctionHandle, int, ArgumentBlock]:
        """(function, blocks, arguments) for `count` indices, in blocks of `BLOCK_THREADS`."""
        function, text = kernel
        arguments = ArgumentBlock(text.parameters)
        for i, value in enumerate(values):
            arguments.buffer[8 * i : 8 * i + 8] = (value & KEEP_EVERYTHING).to_bytes(8, "little")
        most = self.properties.limits.multiprocessors * BLOCKS_PER_MULTIPROCESSOR
        return function, min(-(-count // BLOCK_THREADS), most), arguments


def _kernels_with(key: tuple[object, ...]) -> dict[tuple[object, ...], KernelText]:
    """The kernel of a key, and those that are loaded with it."""
    if key[0] == "convert":
        return {key: convert_kernel(str(key[1]), str(key[2]))}
    if key[0] == "condition":
        return {key: condition_kernel(int(str(key[1])))}
    kernels: dict[tuple[object, ...], KernelText] = {("fill",): fill_kernel()}
    for unit in (1, 2, 4, 8, 16):
        for wide in (False, True):
            kernels["strided", unit, wide] = strided_kernel(unit, wide_index=wide)
    return kernels
