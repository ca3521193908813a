"""The CUDA array interface, version 3, both ways; and NumPy's, to borrow NumPy arrays of any of our types.

The interface has no way to say when a consumer is done: whoever takes a tensor's memory through it keeps the tensor
until then. DLPack has one.

Source: Numba's documentation, "CUDA Array Interface (Version 3)"; NumPy's, "The array interface protocol".
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dlpack import ForeignArray
from ._dtypes import as_dtype
from ._hints import instead_of_a_value
from ._layout import check_reach, contiguous_strides

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
        TypeError: no such interface, or an element type that is not supported. BufferError: a mask, or a shape, strides
            or an address that no memory can have.
    """
    interface = getattr(array, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(
            f"expected an object with __cuda_array_interface__, a dict, got {type(array).__name__}"
            f"{instead_of_a_value(array)}"
        )
    missing = [name for name in ("shape", "typestr", "data") if name not in interface]
    if missing:
        raise BufferError(f"the array interface has no {', '.join(missing)}")
    if interface.get("mask") is not None:
        raise BufferError("masked arrays are not supported; fill the gaps first")
    found = _parse(interface, array)
    try:
        version = operator.index(interface.get("version", 0))
        stream = interface.get("stream") if version >= OLDEST_WITH_STREAM else None
        number = None if stream is None else operator.index(stream)
    except TypeError as error:
        raise BufferError(f"the array interface's version and stream are integers: {error}") from None
    if number is not None and not 0 < number < 2**64:
        raise BufferError(
            "the producer says stream 0, which the interface forbids because it is ambiguous"
            if number == 0
            else f"the producer says stream {number}, which is none"
        )
    return found, number


def numpy_array(array: np.ndarray[Any, Any]) -> ForeignArray:
    """A NumPy array as it lies in memory."""
    return _parse(array.__array_interface__, array, array.dtype)


def _parse(interface: dict[str, Any], owner: object, exact: object = None) -> ForeignArray:
    dtype = as_dtype(interface["typestr"] if exact is None else exact)
    steps = interface.get("strides")
    try:
        shape = tuple(map(operator.index, interface["shape"]))
        address, read_only = interface["data"]
        address = operator.index(address)
        steps = None if steps is None else tuple(map(operator.index, steps))
    except (TypeError, ValueError) as error:
        raise BufferError(
            f"the array interface has a shape, strides and data (an address and a flag) of integers: {error}"
        ) from None
    if steps is None or 0 in shape:
        strides = contiguous_strides(shape)
    else:
        if any(s % dtype.itemsize for s in steps):
            raise BufferError(
                f"strides of {tuple(steps)} bytes are not whole elements of {dtype.name}; copy the array first"
            )
        strides = tuple(s // dtype.itemsize for s in steps)
    check_reach(address, shape, strides, dtype.itemsize)
    if 0 in shape:
        return ForeignArray(0, shape, strides, dtype, bool(read_only), owner)
    if address % dtype.itemsize:
        raise BufferError(f"the array's address {address:#x} is not aligned for {dtype.name}; copy it first")
    return ForeignArray(address, shape, strides, dtype, bool(read_only), owner)
