"""Numbers as printf writes them, against the C library."""

import ctypes
import itertools

import pytest

from cuda_async.driver.host import c_text

FLAGS = ["", "-", "+", " ", "#", "0", "-+", "+0", "#0", "-#", " 0", "+ #0", "-0"]
SIZES = list(itertools.product(["", "1", "9"], [None, "", "0", "1", "5"]))


def by_c(flags, width, precision, kind, number):
    spec = "%" + flags + width + ("" if precision is None else "." + precision)
    is_float = kind in "eEfFgG"
    text = (spec + ("" if is_float else "ll") + kind).encode()
    buffer = ctypes.create_string_buffer(512)
    value = ctypes.c_double(number) if is_float else ctypes.c_ulonglong(number % 2**64)
    ctypes.CDLL(None).snprintf(buffer, ctypes.c_size_t(512), text, value)
    return buffer.value.decode()


@pytest.mark.parametrize("kind", "diouxX")
def test_whole_numbers(kind):
    numbers = [0, 1, 8, 255, 2**31, 2**63 - 1, *([-1, -(2**63)] if kind in "di" else [2**64 - 1])]
    for flags, (width, precision), number in itertools.product(FLAGS, SIZES, numbers):
        expected = by_c(flags, width, precision, kind, number)
        assert c_text(flags, width, precision, kind, number) == expected, (flags, width, precision, number)


@pytest.mark.parametrize("kind", "eEfFgG")
def test_floats(kind):
    numbers = [0.0, -0.0, 1.5, -2.25, 1e30, 123456.789, float("inf"), float("-inf")]
    for flags, (width, precision), number in itertools.product(FLAGS, SIZES, numbers):
        expected = by_c(flags, width, precision, kind, number)
        assert c_text(flags, width, precision, kind, number) == expected, (flags, width, precision, number)


def test_sizes_given_as_arguments():
    assert c_text("", "-4", None, "d", 7) == "7   "
    assert c_text("", "", "-1", "f", 0.5) == "0.500000"
