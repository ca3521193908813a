"""Rounding: how results come to the element types of the IR.

16-bit floats are computed in float32 and rounded once; since float32 has more than twice their digits, sums,
products, quotients and square roots come out as if rounded from the exact result. Transcendental functions
are computed in the next wider type, so that their results are rounded correctly but for rare ties.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ..dtypes import DType, bool_, float8_e4m3fn, float8_e5m2, float16, float64, tfloat32
from ._machine import Array

__all__ = ["convert", "narrow", "wide", "wider"]

_F32 = np.dtype(np.float32)
_F64 = np.dtype(np.float64)


def wide(array: Array, dtype: DType) -> Array:
    """Floats of 16 bits and less as float32; everything else as it is."""
    return array.astype(_F32) if dtype.is_float and dtype.bits <= 16 else array


def wider(array: Array, dtype: DType) -> Array:
    """Floats in a type with more than twice their digits; float64 as it is."""
    return array.astype(_F32 if dtype.bits <= 16 else _F64)


def narrow(array: Array, dtype: DType) -> Array:
    """Computed floats rounded to their element type, to nearest even."""
    if array.dtype == dtype.dtype and dtype is not tfloat32:
        return array
    if dtype is tfloat32:
        return _to_tf32(array)
    if dtype in (float8_e4m3fn, float8_e5m2):
        largest = float(ml_dtypes.finfo(dtype.dtype).max)
        array = np.clip(array, -largest, largest)
    if array.dtype == _F64 and dtype is not float64 and dtype is not float16 and dtype.bits < 32:
        array = _to_odd_f32(array)
    return array.astype(dtype.dtype)


def convert(array: Array, source: DType, target: DType) -> Array:
    """Numbers of one element type as another; see docs/language.md."""
    if target.is_float:
        if source.is_float:
            return narrow(array, target)
        if source is bool_ or target.bits >= 32 or source.bits <= 16:
            return narrow(array.astype(_F32) if target.bits < 32 else array.astype(target.dtype), target)
        return narrow(_keep_sticky(array).astype(_F64), target)
    if source.is_float:
        return _to_integer(array.astype(_F64), target)
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


def _to_odd_f32(array: Array) -> Array:
    """float64 in float32 rounded to odd: a second rounding to a narrow type is then the only one that counts."""
    near = array.astype(_F32)
    back = near.astype(_F64)
    inexact = (back != array) & np.isfinite(array)
    bits = near.view(np.int32)
    # towards zero first: one step back where rounding went away from it
    bits = np.where(inexact & (np.abs(back) > np.abs(array)), bits - 1, bits)
    return np.where(inexact, bits | 1, bits).astype(np.int32).view(_F32)


def _to_tf32(array: Array) -> Array:
    """10 bits of mantissa, in a float32."""
    near = _to_odd_f32(array) if array.dtype == _F64 else array.astype(_F32)
    bits = near.view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(near), rounded.view(_F32), near)
