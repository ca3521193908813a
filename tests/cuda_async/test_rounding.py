"""Elements of narrow types, against what lies half way between their neighbours."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_async._rounding import NARROW, odd_float32, odd_float64, rounded

TYPES = sorted(NARROW, key=str)


def neighbours(dtype):
    """Positive numbers of the type in float64, each with the next one."""
    every = np.arange(256 if dtype.itemsize == 1 else 1 << 16, dtype=f"u{dtype.itemsize}")
    if "float4" in dtype.name:
        every = every[:16]
    with np.errstate(invalid="ignore"):
        exact = np.unique(every.view(dtype).astype(np.float64))
    exact = exact[np.isfinite(exact) & (exact > 0)]
    if "e8m0" in dtype.name:  # ml_dtypes rounds up all that lies between the two smallest
        exact = exact[1:]
    return exact[:-1], exact[1:]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_floats_beside_the_middle_are_rounded_once(dtype):
    """So near to it that float32 takes them for it."""
    below, above = neighbours(dtype)
    middle = (below + above) / 2
    np.testing.assert_array_equal(rounded(middle * (1 + 2.0**-40), dtype).astype("f8"), above)
    np.testing.assert_array_equal(rounded(middle * (1 - 2.0**-40), dtype).astype("f8"), below)


@pytest.mark.parametrize("source", ["i4", "u4", "i8", "u8"])
def test_integers_beside_the_middle_are_rounded_once(source):
    below, above = neighbours(np.dtype("bfloat16"))
    fits = (below >= 2**12) & (above <= np.iinfo(source).max)
    middle = ((below + above) / 2)[fits].astype(source)
    for step, expected in ((1, above[fits]), (-1, below[fits])):
        found = rounded((middle.astype("O") + step).astype(source), np.dtype("bfloat16"))
        np.testing.assert_array_equal(found.astype("f8"), expected)


def test_no_number_and_infinity_stay():
    given_values = np.array([np.nan, np.inf, -np.inf, 1e300, -0.0])
    bfloat = rounded(given_values, np.dtype("bfloat16")).astype("f8")
    np.testing.assert_array_equal(bfloat, [np.nan, np.inf, -np.inf, np.inf, -0.0])
    assert np.signbit(bfloat[4])


def test_other_types_are_numpys():
    values = np.array([1.1, -2.7, 1e9])
    for dtype in ("f2", "f4", "i4", "?"):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(rounded(values, np.dtype(dtype)), values.astype(dtype))


@given(st.floats(-1e38, 1e38))
def test_odd_float32_is_exact_or_odd(number):
    found = odd_float32(np.asarray(number))
    if float(found) != number:
        assert found.view(np.uint32) & 1
        assert abs(Fraction(float(found)) - Fraction(number)) < Fraction(float(np.spacing(np.abs(found))))


@given(st.integers(-(2**80), 2**80))
def test_odd_float64_is_exact_or_odd(number):
    found = odd_float64(number)
    if Fraction(found) != number:
        assert np.float64(found).view(np.uint64) & 1
        assert abs(Fraction(found) - number) < abs(number) * Fraction(1, 2**52)


def test_odd_float64_refuses_the_largest():
    with pytest.raises(OverflowError, match="too large"):
        odd_float64(2**1024)
