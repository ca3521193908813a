"""Conversions between element types."""

from __future__ import annotations

import numpy as np

from ..dtypes import DType, bool_, float8_e8m0fnu
from ._machine import Array
from ._numeric import narrow, to_powers
from ._rounding import nearest_away, round_directed

__all__ = ["convert"]


def convert(array: Array, source: DType, target: DType, rounding: str = "nearest_even") -> Array:
    """Numbers of one element type as another; see docs/language.md."""
    if source is float8_e8m0fnu:  # its smallest number is subnormal in float32, which NumPy's own may lose
        powers = array.view(np.uint8).astype(np.int64)
        array = np.where(powers == 255, np.nan, np.ldexp(1.0, powers - 127))
    if target is float8_e8m0fnu and source.is_float:
        return to_powers(array, rounding)
    if rounding != "nearest_even" and target.is_float:
        value = array.astype(np.float64)
        if rounding == "nearest_away":
            return nearest_away(value)
        return round_directed(value, None, target, rounding)
    if target.is_float:
        if source.is_float:
            return narrow(array.astype(np.float32) if source.bits <= 16 else array, target)
        if source is bool_ or target.bits >= 32 or source.bits <= 16:
            return narrow(
                array.astype(np.float32) if target.bits < 32 else array.astype(target.dtype), target
            )
        return narrow(_keep_sticky(array).astype(np.float64), target)
    if source.is_float:
        return _to_integer(array.astype(np.float64), target)
    return array.astype(target.dtype)


def _keep_sticky(array: Array) -> Array:
    """Integers that float64 holds and that round to narrow floats as the given ones do.

    Those too long for float64 have their low 16 bits made one: all that a much later rounding needs to know.
    """
    if array.dtype.itemsize < 8:
        return array
    one = array.dtype.type
    low = array & one(0xFFFF)
    jammed = (array ^ low) | np.where(low != 0, one(0x8000), one(0))
    high = array >> one(40)
    is_long = high != 0 if array.dtype.kind == "u" else (high != 0) & (high != -1)
    return np.where(is_long, jammed, array)


def _to_integer(array: Array, target: DType) -> Array:
    """Without the fraction; out of range gives the nearest, NaN gives 0."""
    whole = np.trunc(array)
    low, high = whole < float(target.lowest), whole >= float(target.highest + 1)
    inside = np.where(low | high | np.isnan(whole), 0.0, whole)
    result = inside.astype(target.dtype)
    result[low] = target.lowest
    result[high] = target.highest
    return result
