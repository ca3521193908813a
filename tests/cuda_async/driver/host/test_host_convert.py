"""Conversion of elements, against exact arithmetic."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async.driver.host._convert import can_convert, convert_elements

NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
ALL = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", *NARROW]


def nearest(value, dtype):
    """The finite value of `dtype` nearest to an exact number, ties to the even bit pattern; None beyond the largest."""
    bits = np.arange(1 << (8 * np.dtype(dtype).itemsize), dtype=f"u{np.dtype(dtype).itemsize}").view(dtype)
    finite = {}
    for pattern, number in enumerate(bits.astype("f8").tolist()):
        if np.isfinite(number):
            finite.setdefault(Fraction(number), pattern)
    if abs(value) > max(finite):
        return None
    return min(finite, key=lambda x: (abs(x - value), finite[x] & 1))


@pytest.mark.parametrize("dtype", NARROW[1:])
@pytest.mark.parametrize("source", ["f8", "f4", "f2", "i8", "i2"])
def test_narrow_floats_are_nearest(dtype, source):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=60) * 10.0 ** rng.uniform(-3, 2, 60)).astype(source)
    for value, result in zip(
        values.tolist(), convert_elements(values, np.dtype(dtype)).astype("f8").tolist()
    ):
        assert Fraction(result) == nearest(Fraction(value), dtype)


HALF = float(2**-8)  # half the distance between bfloat16 neighbours just above 1


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (1 + HALF, 1.0),
        (1 + HALF + 2**-40, 1 + 2 * HALF),  # float32 would lose the last bit, and then round to even
        (1 + HALF - 2**-40, 1.0),
        (1 + 3 * HALF, 1 + 4 * HALF),
        (1 + 3 * HALF - 2**-40, 1 + 2 * HALF),
        (-(1 + HALF + 2**-40), -(1 + 2 * HALF)),
        (257.0, 256.0),
        (1e300, np.inf),
        (-np.inf, -np.inf),
        (2.0**-140 + 2.0**-160, 0.0),
        (-0.0, -0.0),
    ],
)
def test_float64_to_bfloat16_rounds_once(value, want):
    result = convert_elements(np.array([value]), np.dtype(ml_dtypes.bfloat16)).astype("f8")[0]
    assert result == want
    assert np.signbit(result) == np.signbit(want)


@pytest.mark.parametrize("source", ["i8", "u8"])
@pytest.mark.parametrize(
    ("value", "want"),
    [
        (2**62 + 2**54, 2**62),
        (2**62 + 2**54 + 1, 2**62 + 2**55),
        (2**62 + 2**54 - 1, 2**62),
        (2**54 - 1, 2**54),
        (5, 5),
        (3000, 3008),
    ],
)
def test_integers_to_bfloat16_round_once(source, value, want):
    for sign in (1, -1) if source == "i8" else (1,):
        result = convert_elements(np.array([sign * value], source), np.dtype(ml_dtypes.bfloat16))
        assert int(result.astype("f8")[0]) == sign * want


@given(st.floats(width=64, allow_nan=False, min_value=-1e38, max_value=1e38))
@settings(max_examples=300, deadline=None)
def test_bfloat16_is_nearest_for_any_double(value):
    """Neither neighbour is nearer, and a tie goes to the even one."""
    result = convert_elements(np.array([value]), np.dtype(ml_dtypes.bfloat16))
    bits = int(result.view("u2")[0])
    magnitude, exact = bits & 0x7FFF, Fraction(abs(value))

    def number(pattern):
        return Fraction(float(np.array([pattern], "u2").view(ml_dtypes.bfloat16)[0]))

    error = abs(number(magnitude) - exact)
    for neighbour in (magnitude - 1, magnitude + 1):
        if 0 <= neighbour < 0x7F80:
            other = abs(number(neighbour) - exact)
            assert error < other or (error == other and bits % 2 == 0)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("source", ["f8", "f4", "f2", ml_dtypes.bfloat16])
def test_floats_to_integers_truncate_and_clamp(dtype, source):
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    numbers = [0.0, 1.9, -1.9, 100.5, -0.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 2.0**31, 2.0**63]
    with np.errstate(over="ignore"):
        values = np.array(numbers).astype(source)
    want = []
    for number in values.astype("f8").tolist():
        if np.isnan(number):
            want.append(0)
        elif np.isinf(number):
            want.append(high if number > 0 else low)
        else:
            want.append(min(max(int(number), low), high))
    assert convert_elements(values, np.dtype(dtype)).tolist() == want


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("dtype", ALL)
def test_all_pairs_keep_small_whole_numbers(source, dtype):
    values = np.array([0, 1, 1, 0] if "?" in (source, dtype) else [0, 1, 7, 2]).astype(source)
    result = convert_elements(values, np.dtype(dtype))
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(result.astype("f8"), values.astype("f8"))


@pytest.mark.parametrize("source", ["f8", "f2", *NARROW])
def test_nan_and_bool(source):
    values = np.array([np.nan, 0.0, -0.0, 0.5]).astype(source)
    assert convert_elements(values, np.dtype("?")).tolist() == [True, False, False, True]
    for dtype in ("f4", "f2", *NARROW):
        assert np.isnan(convert_elements(values, np.dtype(dtype)).astype("f8")[0])


def test_integers_to_smaller_integers_keep_low_bits():
    assert convert_elements(np.array([300, -1, 2**40 + 5]), np.dtype("u1")).tolist() == [44, 255, 5]


def test_supported_types():
    assert all(can_convert(np.dtype(dtype)) for dtype in ALL)
    assert not any(can_convert(np.dtype(dtype)) for dtype in ("c8", "V4", "M8[s]", "O", "S3"))
