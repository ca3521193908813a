"""Unsigned arithmetic on more than 64 bits, lane by lane, for products and exact sums.

A 128-bit number is a pair `(high, low)` of uint64 arrays. "Jam" shifts keep in the lowest bit whether
any one bit was shifted out, which is all that a later rounding needs to know of them.
"""

from __future__ import annotations

import numpy as np

from ._semantics_forms import Array

__all__ = [
    "add_128",
    "bit_length",
    "less_128",
    "multiply_high",
    "multiply_high_signed",
    "multiply_wide",
    "shift_left_128",
    "shift_right_jam_128",
    "subtract_128",
]

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_1 = np.uint64(1)


def multiply_wide(a: Array, b: Array) -> tuple[Array, Array]:
    """The 128-bit product of uint64 arrays, from four 32-bit products."""
    a_low, a_high = a & _LOW32, a >> _32
    b_low, b_high = b & _LOW32, b >> _32
    low = a_low * b_low
    middle = a_high * b_low + (low >> _32)
    other = a_low * b_high + (middle & _LOW32)
    high = a_high * b_high + (middle >> _32) + (other >> _32)
    return high, (other << _32) | (low & _LOW32)


def multiply_high(a: Array, b: Array) -> Array:
    """The high 64 bits of an unsigned product."""
    return multiply_wide(a, b)[0]


def multiply_high_signed(a: Array, b: Array) -> Array:
    """The high 64 bits of the signed product of two registers.

    A negative operand counts 2**64 too much in the unsigned product, which shows in the high half as
    one time the other operand.
    """
    high, zero = multiply_wide(a, b)[0], np.uint64(0)
    surplus: Array = np.where(a.view(np.int64) < 0, b, zero) + np.where(b.view(np.int64) < 0, a, zero)
    signed: Array = high - surplus
    return signed


def bit_length(a: Array) -> Array:
    """Number of bits of each uint64 without leading zeros, as int64; 0 for 0.

    Clearing the bit below the leading one keeps the conversion to float64 from rounding up to the next
    power of two; the exponent then is the answer.
    """
    leading: Array = a & ~(a >> _1)
    exponent: Array = leading.astype(np.float64).view(np.int64) >> 52
    length: Array = np.maximum(exponent - 1022, 0)
    return length


def add_128(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Sum modulo 2**128."""
    low: Array = a[1] + b[1]
    return a[0] + b[0] + (low < a[1]).astype(np.uint64), low


def subtract_128(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Difference modulo 2**128."""
    low: Array = a[1] - b[1]
    return a[0] - b[0] - (a[1] < b[1]).astype(np.uint64), low


def less_128(a: tuple[Array, Array], b: tuple[Array, Array]) -> Array:
    """Whether a < b."""
    smaller: Array = (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return smaller


def shift_left_128(a: tuple[Array, Array], count: Array) -> tuple[Array, Array]:
    """Shift left by `count` (int64, 0 or more) modulo 2**128.

    NumPy defines a shift by the width or more as 0, so each half needs no cases of its own.
    """
    n = count.astype(np.uint64)
    beyond = np.maximum(count - 64, 0).astype(np.uint64)
    carried = np.where(count >= 64, a[1] << beyond, np.where(count > 0, a[1] >> (np.uint64(64) - n), 0))
    high = (a[0] << n) | carried.astype(np.uint64)
    return high, a[1] << n


def shift_right_jam_128(a: tuple[Array, Array], count: Array) -> tuple[Array, Array]:
    """Shift right by `count` (int64, 0 or more); the lowest bit remembers ones shifted out."""
    n = count.astype(np.uint64)
    beyond = np.maximum(count - 64, 0).astype(np.uint64)
    carried = np.where(count >= 64, a[0] >> beyond, np.where(count > 0, a[0] << (np.uint64(64) - n), 0))
    high, low = a[0] >> n, (a[1] >> n) | carried.astype(np.uint64)
    back = shift_left_128((high, low), count)
    lost = (back[0] != a[0]) | (back[1] != a[1])
    return high, low | lost.astype(np.uint64)
