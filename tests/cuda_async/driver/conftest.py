"""What element conversions must give, worked out with exact fractions, for the tests of both drivers."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import ClassVar

import ml_dtypes
import numpy as np
import pytest

NARROW = {"bfloat16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
OVERFLOW = {"float16": 0x7C00, "bfloat16": 0x7F80, "e5m2": 0x7C, "e4m3fn": None}
"""Magnitude bits of the result for what is too large; None for NaN."""


def bits_of(dtype):
    """The unsigned type of the same size."""
    return np.dtype(f"u{dtype.itemsize}")


@cache
def finite_values(dtype):
    """Every finite number >= 0 of a small float type in order; its index is its bits."""
    bits = np.arange(1 << 8 * dtype.itemsize - 1, dtype=bits_of(dtype))
    values = bits.view(dtype).astype(np.float64)
    return [Fraction(float(v)) for v in values if np.isfinite(v)]


def nearest(value, dtype):
    """Bits of the number nearest to the fraction `value` >= 0, ties to even; None beyond the range."""
    known = finite_values(dtype)
    # One more number, for what rounds beyond the largest.
    known = [*known, known[-1] + (known[-1] - known[-2])]
    low, high = 0, len(known) - 1
    if value >= known[high]:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if known[middle] <= value else (low, middle)
    below, above = value - known[low], known[high] - value
    chosen = low if below < above or (below == above and low % 2 == 0) else high
    return chosen if chosen < len(known) - 1 else None


def expected_bits(value, name, dtype):
    """The bits of a Python number as `dtype`; None for NaN."""
    infinite = isinstance(value, float) and abs(value) == float("inf")
    if dtype.kind == "b":
        return int(value != 0)
    if name not in NARROW and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if value != value:
            whole = 0
        elif infinite:
            whole = info.max if value > 0 else info.min
        else:
            whole = int(value)
            if isinstance(value, float):
                whole = max(info.min, min(info.max, whole))
        return whole % (1 << 8 * dtype.itemsize)
    if value != value:
        return None
    if name in ("float32", "float64"):  # the processor's own conversion rounds once
        held = np.float64 if isinstance(value, float) else np.uint64 if value > 2**63 - 1 else np.int64
        return int(np.array([value], held).astype(dtype).view(bits_of(dtype))[0])
    negative = np.signbit(value) if isinstance(value, float) else value < 0
    magnitude = None if infinite else nearest(Fraction(abs(value)), dtype)
    if magnitude is None:
        magnitude = OVERFLOW[name]
    return None if magnitude is None else magnitude | int(negative) << 8 * dtype.itemsize - 1


def integers(dtype):
    """Edges of narrower types, powers of two and ties between the numbers of float types, and others."""
    info = np.iinfo(dtype)
    picked = [0, 1, 2, 17, 448, 449, 464, 465, 480, 61439, 61440, 65519, 65520]
    picked += [(1 << k) + d for k in range(7, 64) for d in (-1, 0, 1)]
    picked += [(1 << k) + (1 << k - 8) + d for k in range(9, 63) for d in (-1, 0, 1)]
    picked += [-p for p in picked] + [info.max, info.min, info.max - 1]
    picked += np.random.default_rng(5).integers(info.min, info.max, 50, dtype=dtype).tolist()
    return np.array([p for p in picked if info.min <= p <= info.max], dtype)


def floats(dtype):
    """Edges of all types, subnormal numbers, and numbers on ties and nearer to them than float32 can tell."""
    rng = np.random.default_rng(5)
    picked = [0.0, 1.0, 0.5, 1.5, 2.5, 0.999, 127.5, 128.0, 255.9, 256.0, 300.7, 32767.5, 65535.0]
    picked += [
        448.0,
        464.0,
        464.1,
        480.0,
        57344.0,
        61440.0,
        61439.0,
        65504.0,
        65519.0,
        65520.0,
        3.3e38,
        3.4e38,
    ]
    picked += [2.0**31, 2.0**31 - 1, 2.0**32, 2.0**53, 2.0**62, 2.0**63, 2.0**63 - 1024, 2.0**64, 1e19, 1e30]
    picked += [2.0**-k for k in (6, 7, 9, 10, 14, 16, 17, 24, 25, 126, 133, 134, 149)]
    picked += [3 * 2.0**-k for k in (10, 11, 17, 18, 25, 26, 134, 135)]
    picked += [(1 + 2.0**-k) * (1 + d) for k in (3, 4, 8, 11) for d in (0.0, 2.0**-40, -(2.0**-40), 2.0**-20)]
    picked += [2.0**-10 + d for d in (2.0**-50, -(2.0**-50))]
    picked += [*rng.standard_normal(60), *(rng.standard_normal(30) * 1e4), float("inf"), float("nan")]
    return np.array([*picked, *(-p for p in picked)]).astype(dtype)


class Conversions:
    """Types by short name, numbers to convert, and the check of what came out."""

    types: ClassVar = {
        name: np.dtype(NARROW.get(name, name))
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "bfloat16", "float32", "float64", "e4m3fn", "e5m2"),
        )
    }

    @staticmethod
    def samples(name):
        """Numbers of a type; all of them for an 8-bit one."""
        dtype = Conversions.types[name]
        with np.errstate(all="ignore"):
            if dtype.kind == "b":
                return np.array([True, False])
            if dtype.itemsize == 1:
                return np.arange(256, dtype=np.uint8).view(dtype)
            return floats(dtype) if name in NARROW or dtype.kind == "f" else integers(dtype)

    @staticmethod
    def check(result, values, src, dst):
        """Assert that `result`, of type `dst`, is `values`, of type `src`, converted."""
        is_whole = src not in NARROW and values.dtype.kind in "biu"
        with np.errstate(all="ignore"):
            is_nan = np.isnan(result.astype(np.float64))
            for value, got, nan in zip(values, result.view(bits_of(result.dtype)).tolist(), is_nan):
                number = value.item() if is_whole else float(value)
                expected = expected_bits(number, dst, result.dtype)
                shown = f"{src} {number!r} to {dst}: {got:#x}"
                if expected is None:
                    assert nan, f"{shown}, expected NaN"
                else:
                    assert got == expected, f"{shown}, expected {expected:#x}"


@pytest.fixture(scope="session")
def conversions():
    return Conversions
