"""Random arrays."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from cuda_async import DeviceOp, Tensor, empty
from cuda_async.memory import as_dtype, as_shape

from ._creation import TILE, _output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ..dtypes import DType

__all__ = ["rand", "randn"]

_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Bits of a fraction that the type holds exactly."""


def rand(
    shape: int | Sequence[int], dtype: DTypeLike | DType = np.float32, *, seed: int | None = None
) -> DeviceOp[Tensor]:
    """Uniform random numbers from 0 to below 1, as an operation that yields a new tensor.

    Philox 4x32-10 (see `_philox.py` for which word makes which element). One seed gives the same numbers on
    every device, bit for bit. They are multiples of 2**-24 for float32, 2**-53 for float64, 2**-11 for float16
    and 2**-8 for bfloat16, so no element is 1.

    Args:
        dtype: float16, bfloat16, float32 or float64.
        seed: from 0 to 2**64 - 1; drawn from the system if left out.
    """
    from ._philox import uniform, uniform64

    sides, kind, (k0, k1) = _checked("rand", shape, dtype, seed)
    count = math.prod(sides)
    if not count:
        return empty(sides, kind)
    out = empty((count,), kind).partition(TILE)
    launch = uniform64(out, k0, k1) if kind.name == "float64" else uniform(out, k0, k1, _BITS[kind.name])
    return _output(launch).reshape(sides)


def randn(
    shape: int | Sequence[int], dtype: DTypeLike | DType = np.float32, *, seed: int | None = None
) -> DeviceOp[Tensor]:
    """Normal random numbers of mean 0 and variance 1, as an operation that yields a new tensor.

    By Box and Muller's transform of the same words as `rand`'s, in float32 (float64 for float64) and then
    rounded. One seed gives the same numbers on every device up to rounding: within 6e-6 of the exact transform
    in float32 and 2e-14 in float64. No element is beyond 5.77 (8.58 in float64), where 1 of 10**8 should be.

    Args:
        dtype: float16, bfloat16, float32 or float64.
        seed: from 0 to 2**64 - 1; drawn from the system if left out.
    """
    from ._philox import normal, normal64

    sides, kind, (k0, k1) = _checked("randn", shape, dtype, seed)
    count = math.prod(sides)
    if not count:
        return empty(sides, kind)
    out = empty((count,), kind).partition(TILE)
    return _output((normal64 if kind.name == "float64" else normal)(out, k0, k1)).reshape(sides)


def _checked(
    function: str, shape: object, dtype: object, seed: int | None
) -> tuple[tuple[int, ...], np.dtype[np.generic], tuple[np.uint32, np.uint32]]:
    """Shape, element type and the two halves of the key."""
    kind = as_dtype(dtype)
    if kind.name not in (*_BITS, "float64"):
        raise TypeError(
            f"{function} makes float16, bfloat16, float32 and float64, got {kind.name}; convert() it"
        )
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise ValueError(f"{function}: a seed is a whole number from 0 to 2**64 - 1, got {seed!r}")
    return as_shape(shape), kind, (np.uint32(int(seed) & 0xFFFFFFFF), np.uint32(int(seed) >> 32))
