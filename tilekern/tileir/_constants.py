"""Number encodings: Python and NumPy values as the bytes of a constant, and one value as bits.

A constant holds either every element of its tile, row-major, or exactly one, which then fills it.
Bytes per element: the type's own size, except tf32 (19 bits in 3 bytes), f4 (the low nibble of a byte)
and i1 (bits, lowest first; a lone byte for at most 8 elements; a splat is 0x00 or 0xFF).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import types
from .errors import BytecodeError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_constant_size", "element_bits", "encode_elements"]

_STRUCT = {types.f16: "<e", types.f32: "<f", types.f64: "<d"}

_ML_DTYPES = {
    types.bf16: "bfloat16",
    types.f8e4m3fn: "float8_e4m3fn",
    types.f8e5m2: "float8_e5m2",
    types.f8e8m0fnu: "float8_e8m0fnu",
    types.f4e2m1fn: "float4_e2m1fn",
}

Scalar = bool | int | float


def encode_elements(kind: types.TileType, values: Scalar | Sequence[Any] | np.ndarray[Any, Any]) -> bytes:
    """The constant of type `kind` with these values: one for all elements, or an array of its shape.

    Raises:
        BytecodeError: an element type without constants, a wrong shape, or an integer out of range
            (unsigned values up to 2**bits - 1 are taken as their bit pattern).
    """
    element = kind.element
    if not isinstance(element, types.NumberType) or element in (types.i4, types.fnv8e5m3fnu):
        raise BytecodeError(f"there are no constants of {element}", "constant")
    if isinstance(values, (bool, int, float)):
        if element == types.i1:
            return b"\xff" if values else b"\x00"
        return _encode_scalar(element, values)
    import numpy as np

    array = np.asarray(values)
    if array.ndim == 0:
        return encode_elements(kind, array.item())
    if array.shape != kind.shape:
        raise BytecodeError(
            f"a constant of {kind} needs an array of shape {kind.shape}, got {array.shape}", "constant"
        )
    return _encode_array(element, array)


def element_bits(element: types.NumberType, value: Scalar) -> int:
    """The bit pattern of one number, as an unsigned integer."""
    if element == types.i1:
        return int(bool(value))
    return int.from_bytes(_encode_scalar(element, value), "little")


def check_constant_size(kind: types.TileType, data: bytes) -> None:
    """Refuse data that is neither one element nor all of them."""
    if kind.element == types.i1:
        sizes = {1, (kind.size + 7) // 8}
    else:
        size = _element_size(kind.element)
        sizes = {size, size * kind.size}
    if len(data) not in sizes:
        raise BytecodeError(
            f"a constant of {kind} has {' or '.join(map(str, sorted(sizes)))} bytes, got {len(data)}",
            "constant",
        )


def _element_size(element: types.Type) -> int:
    if not isinstance(element, types.NumberType) or element == types.i4:
        raise BytecodeError(f"there are no constants of {element}", "constant")
    return (element.bits + 7) // 8


def _encode_scalar(element: types.NumberType, value: Scalar) -> bytes:
    if not element.is_float:
        return _encode_int(element, value)
    if element != types.f64:
        from cuda_async._rounding import odd_float64

        value = odd_float64(value)
    if (form := _STRUCT.get(element)) is not None:
        try:
            return struct.pack(form, value)
        except OverflowError:  # struct refuses what rounds to infinity
            return struct.pack(form, float("-inf") if value < 0 else float("inf"))
    import numpy as np

    return _encode_array(element, np.asarray([value]))


def _encode_int(element: types.NumberType, value: Scalar) -> bytes:
    if not isinstance(value, int):
        raise BytecodeError(f"a constant of {element} is an integer, got {value!r}", "constant")
    if not -(1 << (element.bits - 1)) <= value < 1 << element.bits:
        raise BytecodeError(f"{value} does not fit {element}", "constant")
    return (value & ((1 << element.bits) - 1)).to_bytes(element.bits // 8, "little")


def _encode_array(element: types.NumberType, array: np.ndarray[Any, Any]) -> bytes:
    import numpy as np

    if element == types.i1:
        return np.packbits(array.astype(np.bool_).reshape(-1), bitorder="little").tobytes()
    if not element.is_float:
        if array.dtype.kind not in "biu":
            raise BytecodeError(f"a constant of {element} is made of integers, got {array.dtype}", "constant")
        low, high = int(array.min()), int(array.max())
        if low < -(1 << (element.bits - 1)) or high >= 1 << element.bits:
            raise BytecodeError(f"values from {low} to {high} do not fit {element}", "constant")
        return array.astype(np.dtype(f"<u{element.bits // 8}"), casting="unsafe").tobytes()
    if element == types.tf32:
        return _encode_tf32(array)
    with np.errstate(over="ignore", invalid="ignore"):
        if (form := _STRUCT.get(element)) is not None:
            return array.astype(np.dtype(form[0] + "f" + str(element.bits // 8))).tobytes()
        import ml_dtypes

        from cuda_async._rounding import rounded

        # ml_dtypes stores a 4-bit float in the low nibble of a byte, as Tile IR does.
        return rounded(array, np.dtype(getattr(ml_dtypes, _ML_DTYPES[element]))).tobytes()


def _encode_tf32(array: np.ndarray[Any, Any]) -> bytes:
    """The upper 19 bits of float32, rounded to nearest even, three bytes each."""
    import numpy as np

    from cuda_async._rounding import odd_float32

    with np.errstate(over="ignore", invalid="ignore"):
        bits = odd_float32(array).view("<u4").astype(np.uint64)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0xFFF + ((bits >> np.uint64(13)) & np.uint64(1))) >> np.uint64(13)
    # Rounding could carry a NaN's payload away; keep the quiet bit instead.
    rounded = np.where(is_nan, (bits >> np.uint64(13)) | np.uint64(0x200), rounded)
    return rounded.astype("<u4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
