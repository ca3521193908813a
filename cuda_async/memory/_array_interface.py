"""The CUDA array interface, version 3, both ways; and NumPy's, to borrow NumPy arrays of any of our types.

The interface has no way to say when a consumer is done: whoever takes a tensor's memory through it keeps the tensor
until then. DLPack has one.

Source: Numba's documentation, "CUDA Array Interface (Version 3)"; NumPy's, "The array interface protocol".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dlpack import ForeignArray
from ._dtypes import as_dtype
from ._layout import contiguous_strides

if TYPE_CHECKING:
    from ._tensor import Tensor

__all__ = ["cuda_array_interface", "numpy_array", "parse_cuda_array_interface"]

OLDEST_WITH_STREAM = 3


def cuda_array_interface(tensor: Tensor) -> dict[str, Any]:
    """What `Tensor.__cuda_array_interface__` is."""
    buffer = tensor._buffer
    if tensor.device.kind != "cuda":
        raise AttributeError(f"__cuda_array_interface__: the tensor is on {tensor.device}; use DLPack")
    if tensor.dtype.isbuiltin != 1:
        raise AttributeError(
            f"__cuda_array_interface__: the interface has no name for {tensor.dtype.name}; use DLPack"
        )
    buffer.check_usable()
    itemsize = tensor.dtype.itemsize
    return {
        "version": 3,
        "shape": tensor.shape,
        "typestr": tensor.dtype.str,
        "data": (tensor._address if tensor.size else 0, buffer.read_only),
        "strides": None if tensor.is_contiguous else tuple(s * itemsize for s in tensor.strides),
        "stream": tensor.device._lend_to_anyone(buffer),
    }


def parse_cuda_array_interface(array: Any) -> tuple[ForeignArray, int | None]:
    """The array, and the stream its contents are ready on (None: they are ready, or that is the caller's business).

    Raises:
        TypeError: no such interface, or an element type that is not supported. BufferError: a mask or bad strides.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"expected an object with __cuda_array_interface__, got {type(array).__name__}")
    if interface.get("mask") is not None:
        raise BufferError("masked arrays are not supported; fill the gaps first")
    found = _parse(interface, array)
    stream = interface.get("stream") if interface.get("version", 0) >= OLDEST_WITH_STREAM else None
    if stream == 0:
        raise BufferError("the producer says stream 0, which the interface forbids because it is ambiguous")
    return found, stream


def numpy_array(array: np.ndarray[Any, Any]) -> ForeignArray:
    """A NumPy array as it lies in memory."""
    return _parse(array.__array_interface__, array, array.dtype)


def _parse(interface: dict[str, Any], owner: object, exact: object = None) -> ForeignArray:
    dtype = as_dtype(interface["typestr"] if exact is None else exact)
    shape = tuple(int(n) for n in interface["shape"])
    address, read_only = interface["data"]
    steps = interface.get("strides")
    if not math.prod(shape):
        return ForeignArray(0, shape, contiguous_strides(shape), dtype, bool(read_only), owner)
    if steps is None:
        strides = contiguous_strides(shape)
    else:
        if any(s % dtype.itemsize for s in steps):
            raise BufferError(
                f"strides of {tuple(steps)} bytes are not whole elements of {dtype.name}; copy the array first"
            )
        strides = tuple(s // dtype.itemsize for s in steps)
    if address % dtype.itemsize:
        raise BufferError(f"the array's address {address:#x} is not aligned for {dtype.name}; copy it first")
    return ForeignArray(int(address), shape, strides, dtype, bool(read_only), owner)
