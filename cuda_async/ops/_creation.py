"""Operations that make tensors."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .._rounding import rounded
from ..memory import DType, PinnedBlock, Tensor, as_dtype, as_shape, fill_pattern
from ..memory._hints import instead_of_a_value
from ._op import DeviceOp, refuse_attribute

if TYPE_CHECKING:
    from ..memory import ShapeLike
    from ._context import ExecutionContext

__all__ = ["empty", "from_host", "full", "ones", "zeros"]

INLINE_STAGING_BYTES = 32 * 1024
"""Host arrays up to this size are staged at once (a few microseconds); larger ones on a worker thread."""


class Empty(DeviceOp[Tensor]):
    """`empty(shape, dtype)`."""

    __getattr__ = refuse_attribute

    _checks_output = False

    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        self._shape = shape
        self._dtype = dtype

    def _size_bytes(self) -> int:
        return math.prod(self._shape) * self._dtype.itemsize

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return ctx.device._would_map(self._size_bytes())

    def prepare(self, ctx: ExecutionContext) -> None:
        ctx.device._map_ahead(self._size_bytes(), ctx.stream)

    def execute(self, ctx: ExecutionContext) -> Tensor:
        return ctx._empty(self._shape, self._dtype)


class Full(Empty):
    """`full(shape, value, dtype)`."""

    def __init__(self, shape: tuple[int, ...], pattern: bytes, dtype: DType) -> None:
        super().__init__(shape, dtype)
        self._pattern = pattern

    def execute(self, ctx: ExecutionContext) -> Tensor:
        tensor = ctx._empty(self._shape, self._dtype)
        count = tensor.size
        if count:
            with ctx.device._lock:
                ctx.device._order(ctx.stream, [], [tensor._buffer])
                ctx._driver.fill_async(tensor._address, self._pattern, count, ctx.stream._handle)
        return tensor


class FromHost(DeviceOp[Tensor]):
    """`from_host(array)`."""

    __getattr__ = refuse_attribute

    _checks_output = False

    def __init__(self, array: np.ndarray[Any, Any], dtype: DType) -> None:
        self._array = array
        self._dtype = dtype
        self._block: PinnedBlock | None = None

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        array = self._array
        if array.nbytes == 0 or self._block is not None:
            return False
        if array.nbytes <= INLINE_STAGING_BYTES:
            block = ctx.device.pinned.take_cached(array.nbytes)
            if block is not None:
                self._stage(block)
                return False
        return True

    def prepare(self, ctx: ExecutionContext) -> None:
        self._stage(ctx.device.pinned.take(self._array.nbytes))
        if ctx.device._would_map(self._array.nbytes):
            ctx.device._map_ahead(self._array.nbytes, ctx.stream)

    def _stage(self, block: PinnedBlock) -> None:
        np.copyto(block.array(self._array.shape, self._dtype), self._array)
        self._block = block

    def execute(self, ctx: ExecutionContext) -> Tensor:
        array = self._array
        tensor = ctx._empty(array.shape, self._dtype)
        block, self._block = self._block, None
        if array.nbytes:
            assert block is not None, "it was not prepared"
            stream = ctx.stream
            with ctx.device._lock:
                ctx.device._order(stream, [], [tensor._buffer])
                stream._retained.append(block)  # first: an interrupt may come behind the driver's call
                ctx._driver.copy_host_to_device_async(
                    tensor._address, block.address, array.nbytes, stream._handle
                )
        return tensor


def empty(shape: ShapeLike, dtype: object = np.float32) -> DeviceOp[Tensor]:
    """A new tensor with undefined contents.

    Raises (when it runs):
        OutOfMemoryError: it does not fit; nothing was enqueued.
    """
    return Empty(as_shape(shape), as_dtype(dtype))


def zeros(shape: ShapeLike, dtype: object = np.float32) -> DeviceOp[Tensor]:
    """A new tensor of zeros."""
    return full(shape, 0, dtype)


def ones(shape: ShapeLike, dtype: object = np.float32) -> DeviceOp[Tensor]:
    """A new tensor of ones."""
    return full(shape, 1, dtype)


def full(shape: ShapeLike, value: float | np.generic, dtype: object = np.float32) -> DeviceOp[Tensor]:
    """A new tensor with every element `value`: among integers without its fraction, beyond a float type infinite.

    Raises:
        OverflowError: a number that an integer `dtype` cannot hold, or an int beyond every float.
    """
    kind = as_dtype(dtype)
    return Full(as_shape(shape), fill_pattern(value, kind), kind)


def refuse_masked(array: object, what: str) -> None:
    """Raise for an array whose gaps would be lost."""
    # Naming numpy.ma imports it, which takes milliseconds. While another thread is at that, nobody has such an array.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        raise TypeError(f"{what} was given a masked array; fill the gaps first, with array.filled(value)")


def host_array(
    array: object, dtype: object = None, what: str = "from_host()"
) -> tuple[np.ndarray[Any, Any], DType]:
    """`array` as a NumPy array of a supported type, or a clear error."""
    hint = instead_of_a_value(array)
    if hint or isinstance(array, Tensor):
        raise TypeError(f"{what} takes host data, got a {type(array).__name__}{hint}")
    refuse_masked(array, what)
    if isinstance(array, np.ndarray):
        found = array
    else:
        try:
            found = np.asarray(array)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{what} cannot read a {type(array).__name__} as an array ({error}); "
                "use from_dlpack() for other libraries' tensors"
            ) from error
    if dtype is not None:
        kind = as_dtype(dtype)
        as_dtype(found.dtype)  # only numbers are converted, and no complex ones
        if found.dtype.kind in "iu" and kind.kind in "iu" and not isinstance(array, (np.ndarray, np.generic)):
            return np.asarray(array, kind), kind  # as it is: Python's ints must fit
        return (found if found.dtype == kind else rounded(found, kind)), kind
    return found, as_dtype(found.dtype)


def from_host(array: object, dtype: object = None) -> DeviceOp[Tensor]:
    """Copy a NumPy array (or anything `numpy.asarray` takes) to a new, contiguous tensor.

    The array is read when the operation runs, into pinned staging memory; once it has been awaited the array may
    be changed at will.

    Args:
        array: any shape and strides. dtype: convert to this type on the host first.
    Raises:
        TypeError: an element type that is not supported. OverflowError: a Python int that `dtype` cannot hold.
        OutOfMemoryError: (when it runs) it does not fit; nothing was enqueued.
    """
    found, kind = host_array(array, dtype)
    return FromHost(found, kind)
