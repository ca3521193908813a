"""Element types and their bytes."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.memory import DTYPES, as_dtype, fill_pattern

NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
)


def test_supported_types_are_these():
    assert sorted(DTYPES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_name_gives_dtype(name):
    dtype = as_dtype(name)
    assert dtype.name == name
    assert getattr(ca, "bool_" if name == "bool" else name) is dtype
    assert as_dtype(dtype) is dtype
    assert as_dtype(dtype.type) is dtype


@pytest.mark.parametrize(
    ("given_type", "name"),
    [
        ("f4", "float32"),
        ("<i8", "int64"),
        ("|b1", "bool"),
        (float, "float64"),
        (bool, "bool"),
        (np.half, "float16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2"),
    ],
)
def test_other_spellings(given_type, name):
    assert as_dtype(given_type).name == name


@pytest.mark.parametrize(
    "given_type",
    ["complex64", "float128x", np.complex128, "S3", object, "M8[s]", [("x", "i4")], 7, None.__class__, []],
    ids=repr,
)
def test_other_types_are_refused(given_type):
    with pytest.raises(
        TypeError, match=r"not a supported element type; these are: bool, int8, .*float8_e5m2"
    ):
        as_dtype(given_type)


def test_none_is_no_element_type():
    """NumPy takes None for float64, where the default here is float32."""
    with pytest.raises(TypeError, match="None is not a supported element type"):
        as_dtype(None)


def test_foreign_byte_order_is_refused():
    with pytest.raises(TypeError, match="not in this machine's byte order; convert it with"):
        as_dtype(">f4")


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (-3, "int8", b"\xfd"),
        (2**63 + 1, "uint64", struct.pack("<Q", 2**63 + 1)),
        (np.int64(-1), "int32", b"\xff" * 4),
        (True, "bool", b"\x01"),
        (0.1, "float64", struct.pack("<d", 0.1)),
        (0.1, "float32", struct.pack("<f", 0.1)),
        (1.5, "float16", struct.pack("<e", 1.5)),
        (257.0, "bfloat16", struct.pack("<H", 0x4380)),
        (1 + 2**-8 + 2**-40, "bfloat16", struct.pack("<H", 0x3F81)),  # half way in float32
        (2**30 + 2**22 + 1, "bfloat16", struct.pack("<H", 0x4E81)),
        (-(2**63 + 2**39 + 1), "float32", struct.pack("<I", 0xDF000001)),  # NumPy has no integer for it
        (-(2**63 + 2**55 + 1), "bfloat16", struct.pack("<H", 0xDF01)),
        (2**70 + 2**46 + 1, "float32", struct.pack("<f", 2.0**70 + 2.0**47)),  # half way in float64
        (1.0, "float8_e4m3fn", b"\x38"),
        (1.0, "float8_e5m2", b"\x3c"),
        (7, "float32", struct.pack("<f", 7)),
        (1e300, "float32", struct.pack("<f", float("inf"))),
        (np.float32(2), "int16", b"\x02\x00"),
        (1.5, "int8", b"\x01"),
        (-0.5, "uint8", b"\x00"),
        (127.9, "int8", b"\x7f"),
        (1e50, "float16", struct.pack("<e", float("inf"))),
        (-1e50, "bfloat16", struct.pack("<H", 0xFF80)),
        (10**300, "float32", struct.pack("<f", float("inf"))),
        (1e50, "float8_e4m3fn", b"\x7f"),
        (1e50, "float8_e5m2", b"\x7c"),
    ],
)
def test_fill_pattern_is_one_element(value, name, expected):
    assert fill_pattern(value, as_dtype(name)) == expected


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (128, "int8"),
        (-1, "uint8"),
        (2**32, "uint32"),
        (np.int64(-(2**40)), "int32"),
        (128.5, "int8"),
        (-1.0, "uint8"),
    ],
)
def test_fill_pattern_refuses_what_does_not_fit(value, name):
    with pytest.raises(OverflowError, match=rf"{value} does not fit {name} \("):
        fill_pattern(value, as_dtype(name))


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: 2**2000, "float32", r"an int of 2001 bits does not fit float32: .* float\('inf'\)"),
        (lambda: -(2**2000), "bfloat16", "an int of 2001 bits does not fit bfloat16"),
        (lambda: 2**20000, "int64", r"an int of 20001 bits does not fit int64 \(-9223372036854775808"),
    ],
)
def test_fill_pattern_names_numbers_too_long_to_print(make, name, message):
    with pytest.raises(OverflowError, match=message):
        fill_pattern(make(), as_dtype(name))


@pytest.mark.parametrize("value", ["1", None, [1], np.array([1, 2]), 1j], ids=repr)
def test_fill_pattern_refuses_what_is_no_number(value):
    with pytest.raises(TypeError, match="expected a number for float32"):
        fill_pattern(value, as_dtype("float32"))
