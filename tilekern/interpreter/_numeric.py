"""Rounding: how results come to the element types of the IR.

16-bit floats are computed in float32 and rounded once; since float32 has more than twice their digits, sums,
products, quotients and square roots come out as if rounded from the exact result. Transcendental functions
are computed in the next wider type, so that their results are rounded correctly but for rare ties.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ..dtypes import (
    DType,
    float4_e2m1fn,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float64,
    tfloat32,
)
from ._machine import Array

__all__ = ["narrow", "to_powers", "wide", "wider"]

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
    if dtype is float8_e8m0fnu:
        return to_powers(array, "zero")
    if dtype in (float8_e4m3fn, float8_e5m2, float4_e2m1fn):
        largest = float(ml_dtypes.finfo(dtype.dtype).max)
        array = np.clip(array, -largest, largest)
    if dtype is float4_e2m1fn:  # it has no NaN
        array = np.where(np.isnan(array), array.dtype.type(6), array)
    if array.dtype == _F64 and dtype is not float64 and dtype is not float16 and dtype.bits < 32:
        array = _to_odd_f32(array)
    return array.astype(dtype.dtype)


def to_powers(array: Array, rounding: str) -> Array:
    """The power of two at or below a magnitude, or at or above it ("positive_inf"), as float8_e8m0fnu.

    From 2**-127 to 2**127, whatever is outside; NaN stays.
    """
    magnitude = np.abs(array.astype(_F64))
    fraction, exponent = np.frexp(magnitude)  # 0.5 <= fraction < 1
    exponent = exponent.astype(np.int64) - 1
    if rounding == "positive_inf":
        exponent += fraction > 0.5
    exponent = np.where(magnitude == 0, -127, np.where(np.isinf(magnitude), 127, exponent))
    bits = np.where(np.isnan(array), 255, np.clip(exponent, -127, 127) + 127)
    return bits.astype(np.uint8).view(float8_e8m0fnu.dtype)


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
