"""Element conversion with one rounding, to nearest even.

`ml_dtypes` converts to its types by way of float32, which rounds twice what float32 does not hold exactly.
The remedy is rounding to odd: a float32 that had to drop bits gets its last bit set, so the second rounding
sees that something was there. That is exact because float32 has at least two bits more than those types.

From float to integer: truncated, then clamped to the integer's range; NaN gives 0. To bool: is not zero.
Integers to smaller ones: the low bits. What a float type cannot hold becomes infinity, or NaN in types
without one, as in `ml_dtypes`.

Source: S. Boldo, G. Melquiond, "When double rounding is odd", 2005.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["can_convert", "convert_elements"]

_NARROW = frozenset(np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
"""Types that `ml_dtypes` reaches by way of float32."""
_FLOAT64_WHOLE = 1 << 53
"""float64 holds every integer up to here."""


def can_convert(dtype: np.dtype[Any]) -> bool:
    """Whether `convert_elements` takes this type, on either side."""
    return dtype in _NARROW or dtype.kind in "biuf"


def convert_elements(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`values` as elements of `dtype`, by the rules above."""
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        if dtype in _NARROW:
            return _to_float32(values).astype(dtype)
        values = _widened(values)
        if dtype.kind == "b":
            return np.asarray(values != 0)
        if dtype.kind in "iu" and values.dtype.kind == "f":
            return _truncated(values, dtype)
        return values.astype(dtype)


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    """Narrow floats as float32, exactly; anything else as it is."""
    return values.astype(np.float32) if values.dtype in _NARROW else values


def _truncated(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    whole = np.trunc(values.astype(np.float64))
    # The largest integers have no float64 of their own: compare with the power of two above.
    above = whole >= float(limits.max + 1)
    below = whole < float(limits.min)
    result = np.where(above | below | np.isnan(whole), 0.0, whole).astype(dtype)
    result[above] = limits.max
    result[below] = limits.min
    return result


def _to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """As float32, rounded to odd."""
    values = _widened(values)
    if values.dtype.itemsize <= 2 or values.dtype == np.float32:
        return values.astype(np.float32)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        values = _without_low_bits(values)
    exact = values.astype(np.float64)
    rounded = exact.astype(np.float32)
    back = rounded.astype(np.float64)
    rounded = np.where(np.abs(back) > np.abs(exact), np.nextafter(rounded, np.float32(0)), rounded)
    inexact = (back != exact) & ~np.isnan(exact)
    bits: NDArray[np.uint32] = rounded.view(np.uint32) | inexact.astype(np.uint32)
    return bits.view(np.float32)


def _without_low_bits(values: NDArray[Any]) -> NDArray[Any]:
    """64-bit integers that float64 holds: the low 12 bits of large ones become one, "not all zero"."""
    one = values.dtype.type
    low = values & one(0xFFF)
    short = (values - low) | ((low != 0).astype(values.dtype) << one(11))
    large = (values > _FLOAT64_WHOLE) | (values < -_FLOAT64_WHOLE)
    return np.where(large, short, values)
