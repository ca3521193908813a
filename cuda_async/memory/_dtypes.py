"""Element types: NumPy dtypes, with `ml_dtypes` for the ones NumPy lacks.

A dtype is always a `numpy.dtype`; `as_dtype` takes whatever a caller would write for one.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from .._rounding import odd_float64, rounded
from ._hints import instead_of_a_value

__all__ = [
    "DTYPES",
    "EXPONENTS",
    "DType",
    "as_dtype",
    "bfloat16",
    "bool_",
    "fill_pattern",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

# np.dtype is generic over a scalar type that depends on the value here.
DType = np.dtype[Any]

bool_: DType = np.dtype(np.bool_)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)
float8_e4m3fn: DType = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: DType = np.dtype(ml_dtypes.float8_e5m2)
float8_e8m0fnu: DType = np.dtype(ml_dtypes.float8_e8m0fnu)
"""Powers of two, for scales; stored and moved, not converted by `astype`."""

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        bool_,
        int8,
        int16,
        int32,
        int64,
        uint8,
        uint16,
        uint32,
        uint64,
        float16,
        bfloat16,
        float32,
        float64,
        float8_e4m3fn,
        float8_e5m2,
        float8_e8m0fnu,
    )
}
"""Every supported element type by its name."""

_CACHE: dict[object, DType] = {d: d for d in DTYPES.values()}


def as_dtype(dtype: object) -> DType:
    """The supported `numpy.dtype` meant by `dtype`: a dtype, a scalar type, or a name such as `"bfloat16"`.

    Raises:
        TypeError: not an element type of this package; the message lists them.
    """
    try:
        return _CACHE[dtype]
    except (KeyError, TypeError):
        pass
    found: DType | None = None
    if isinstance(dtype, str) and dtype in DTYPES:
        found = DTYPES[dtype]
    else:
        try:  # None is no name for float64 here, where float32 is the default
            candidate = None if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]  # any object
        except (TypeError, ValueError, SyntaxError, OverflowError):  # NumPy reads a small language in strings
            candidate = None
        if candidate is not None:
            if not candidate.isnative:
                raise TypeError(
                    f"{dtype!r} is not in this machine's byte order; convert it with .astype(dtype.newbyteorder('='))"
                )
            found = DTYPES.get(candidate.name)
    if found is None:
        hint = "; a shape of several extents is one argument: (2, 3)" if type(dtype) is int else ""
        raise TypeError(f"{dtype!r} is not a supported element type; these are: {', '.join(DTYPES)}{hint}")
    if isinstance(dtype, (str, type, np.dtype)):
        _CACHE[dtype] = found
    return found


EXPONENTS = "float8_e8m0fnu"
"""The type of powers of two alone, for storage. It has no 0, for which the smallest stands, as in NumPy's `zeros`, and
conversions do not know it."""


def fill_pattern(value: object, dtype: DType) -> bytes:
    """The bytes of one element holding `value`.

    Raises:
        OverflowError: a number that an integer `dtype` cannot hold, or one that is no power of two; naming both.
        TypeError: not a number.
    """
    if type(value) is int:  # zeros and ones, mostly (floats are not cached: 0.0 and -0.0 are equal)
        return _int_pattern(value, dtype)
    return _pattern(value, dtype)


@functools.lru_cache(1024)
def _int_pattern(value: int, dtype: DType) -> bytes:
    return _pattern(value, dtype)


def _pattern(value: object, dtype: DType) -> bytes:
    if (
        isinstance(value, (int, np.integer))
        and not isinstance(value, (bool, np.bool_))
        and dtype.kind in "iu"
    ):
        info = np.iinfo(dtype)
        if not info.min <= int(value) <= info.max:
            raise OverflowError(f"{_shown(int(value))} does not fit {dtype.name} ({info.min} to {info.max})")
    if isinstance(value, (float, np.floating)) and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not info.min - 1 < float(value) < info.max + 1:
            raise OverflowError(f"{value} does not fit {dtype.name} ({info.min} to {info.max})")
    if not isinstance(value, (bool, int, float, np.generic)):
        raise TypeError(
            f"expected a number for {dtype.name}, got {type(value).__name__}{instead_of_a_value(value)}"
        )
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:  # NumPy has no integer so long
        number: int = value
        try:
            value = odd_float64(number)
        except OverflowError:
            raise OverflowError(
                f"{_shown(number)} does not fit {dtype.name}: no float is so large; give float('inf') for infinity"
            ) from None
    with np.errstate(over="ignore"):
        made = rounded(np.asarray(value), dtype)
    if dtype.name == EXPONENTS and np.isnan(made.astype(np.float32)) and value == value:
        if value == 0:
            return b"\0"
        raise OverflowError(f"{value} does not fit {dtype.name}, which has powers of two only")
    return made.tobytes()


def _shown(value: int) -> str:
    """A whole number in a message; Python refuses to print very long ones."""
    return str(value) if value.bit_length() <= 128 else f"an int of {value.bit_length()} bits"
