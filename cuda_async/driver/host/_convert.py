"""Element conversion with one rounding, to nearest even.

From float to integer: truncated, then clamped to the integer's range; NaN gives 0. To bool: is not zero.
Integers to smaller ones: the low bits. What a float type cannot hold becomes infinity, or NaN in types
without one, as in `ml_dtypes`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..._rounding import rounded

__all__ = ["can_convert", "convert_elements"]

_NARROW = frozenset(np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
"""Types of `ml_dtypes` that are converted; the others are for storage."""


def can_convert(dtype: np.dtype[Any]) -> bool:
    """Whether `convert_elements` takes this type, on either side."""
    return dtype in _NARROW or dtype.kind in "biuf"


def convert_elements(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`values` as elements of `dtype`, by the rules above."""
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        if dtype in _NARROW:
            return rounded(values, dtype)
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
