"""Numbers as elements of a type, rounded once, to nearest even.

`ml_dtypes` converts to its types by way of float32, which rounds twice what float32 does not hold exactly.
The remedy is rounding to odd: a float32 that had to drop bits gets its last bit set, so the second rounding
sees that something was there. That is exact because float32 has at least two bits more than those types.

Source: S. Boldo, G. Melquiond, "When double rounding is odd", 2005.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["NARROW", "odd_float32", "odd_float64", "rounded"]

NARROW = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
        ml_dtypes.float4_e2m1fn,
    )
)
"""Types that `ml_dtypes` reaches by way of float32."""
_FLOAT64_WHOLE = 1 << 53
"""float64 holds every integer up to here."""


def rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`values.astype(dtype)`, but for the narrow floats by one rounding alone."""
    if dtype not in NARROW or values.dtype == dtype:
        return values.astype(dtype)
    with np.errstate(all="ignore"):
        return odd_float32(values).astype(dtype)


def odd_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers of any type as float32, rounded to odd."""
    if values.dtype in NARROW or values.dtype.itemsize <= 2 or values.dtype == np.float32:
        return values.astype(np.float32)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        values = _without_low_bits(values)
    with np.errstate(all="ignore"):
        exact = values.astype(np.float64)
        near = exact.astype(np.float32)
        back = near.astype(np.float64)
        near = np.where(np.abs(back) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
        inexact = (back != exact) & ~np.isnan(exact)
    return np.asarray(near.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)


def odd_float64(number: float | np.integer[Any] | np.floating[Any]) -> float:
    """A number as float64; an int that float64 does not hold is rounded to odd.

    Raises:
        OverflowError: an int that is larger than every float64.
    """
    near = float(number)
    if not isinstance(number, int | np.integer) or int(near) == int(number):
        return near
    size = abs(int(number))
    dropped = size.bit_length() - 53
    return math.copysign(math.ldexp(size >> dropped | 1, dropped), near)


def _without_low_bits(values: NDArray[Any]) -> NDArray[Any]:
    """64-bit integers that float64 holds: the low 12 bits of large ones become one, "not all zero"."""
    one = values.dtype.type
    low = values & one(0xFFF)
    short = (values - low) | ((low != 0).astype(values.dtype) << one(11))
    large = (values > _FLOAT64_WHOLE) | (values < -_FLOAT64_WHOLE)
    return np.where(large, short, values)
