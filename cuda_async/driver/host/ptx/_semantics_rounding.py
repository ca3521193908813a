"""Correctly rounded f32 and f64 arithmetic in every mode, from the host's round-to-nearest arithmetic.

f32 is computed in f64. A product of two f32 is exact there; quotients and square roots are not, but if
one differs from an f32 number (or a tie between two) it does so by more than the f64 error, so rounding
it again is right (53 >= 2 * 24 + 2). Only sums need care: they are rounded to *odd* in f64, that is
towards zero with the last bit set when inexact, after which any second rounding to 51 bits or fewer gives
what rounding the exact sum would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
proved algorithms using rounding to odd"). `fma` to nearest takes the short way, a plain f64 sum, unless
that sum looks like a tie or is in the subnormal range.

f64 in a directed mode goes through integers (`_semantics_softfloat`), quotients and roots through the sign of
an exact residual. `fma` to nearest uses error-free transformations, and integers for exponents near the
ends of the range.

Callers hold `numpy.errstate(all="ignore")`.
"""

from __future__ import annotations

import numpy as np

from ._semantics_forms import Array
from ._semantics_softfloat import FORMATS, decompose, fma_f64_exact, round_pack

__all__ = [
    "add_f32",
    "add_f64",
    "divide_f32",
    "divide_f64",
    "fma_f32",
    "fma_f64",
    "multiply_f32",
    "multiply_f64",
    "narrow",
    "narrow_odd",
    "odd_sum",
    "square_root_f32",
    "square_root_f64",
]

_F64 = np.float64
_F32 = np.float32


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The f64 sum and its exact error (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The f64 product and its exact error (Dekker); exponents must be far from the ends of the range."""
    product = a * b
    a_high = a * 134217729.0
    a_high = a_high - (a_high - a)
    b_high = b * 134217729.0
    b_high = b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _to_odd(total: Array, error: Array) -> Array:
    """`total + error` rounded to odd, where total is the nearest f64."""
    bits: Array = total.view(np.int64)
    inexact = (error < 0) | (error > 0)
    back = ((error.view(np.int64) ^ bits) < 0) & inexact
    odd: Array = (bits - back) | inexact
    return odd.view(_F64)


def odd_sum(a: Array, b: Array) -> Array:
    """a + b of f64 values rounded to odd."""
    return _to_odd(*two_sum(a, b))


def _signed_zero_down(total: Array, a: Array, b: Array) -> Array:
    """Rounding down, a sum that is exactly zero is -0 unless both terms are +0."""
    minus = (total == 0) & (np.signbit(a) | np.signbit(b))
    return np.where(minus, -0.0, total) if np.count_nonzero(minus) else total


def narrow(values: Array, dtype: type[np.floating], mode: str) -> Array:
    """f64 values rounded to f32 or f16: to nearest by the host, then one step back where that overshot."""
    result: Array = values.astype(dtype)
    if mode == "rn":
        return result
    back = result.astype(_F64)
    signed: Array = result.view(np.int32 if dtype is _F32 else np.int16)
    if mode == "rz":
        step: Array = -(np.abs(back) > np.abs(values)).astype(signed.dtype)
    else:
        wrong = back > values if mode == "rm" else back < values
        outwards = signed < 0 if mode == "rm" else signed >= 0
        step = np.where(outwards, wrong, -wrong.astype(signed.dtype)).astype(signed.dtype)
    return (signed + step).view(dtype)


def narrow_odd(values: Array) -> Array:
    """f64 values rounded to odd in f32; never overflows to infinity."""
    result: Array = values.astype(_F32)
    back = result.astype(_F64)
    inexact = (back < values) | (back > values)
    bits: Array = result.view(np.int32)
    odd: Array = (bits - (np.abs(back) > np.abs(values))) | inexact
    return odd.view(_F32)


def add_f32(a: Array, b: Array, mode: str) -> Array:
    """a + b of f32 values."""
    if mode == "rn":
        return np.add(a, b)
    x, y = a.astype(_F64), b.astype(_F64)
    total = odd_sum(x, y)
    if mode == "rm":
        total = _signed_zero_down(total, x, y)
    return narrow(total, _F32, mode)


def multiply_f32(a: Array, b: Array, mode: str) -> Array:
    """a * b of f32 values."""
    if mode == "rn":
        return np.multiply(a, b)
    return narrow(a.astype(_F64) * b.astype(_F64), _F32, mode)


_LOW_BITS = np.uint64(0x1FFFFFFF)
_TIE = np.uint64(0x10000000)


def fma_f32(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a * b + c of f32 values, rounded once."""
    product = a.astype(_F64) * b.astype(_F64)
    addend = c.astype(_F64)
    if mode == "rn":
        total = product + addend
        result: Array = total.astype(_F32)
        tie = (total.view(np.uint64) & _LOW_BITS) == _TIE
        # Magnitudes 1 .. 0x00800000, the subnormals and the first normal; zero wraps around.
        small = (result.view(np.uint32) << np.uint32(1)) - np.uint32(1) < np.uint32(0x01000000)
        if not np.count_nonzero(tie | small):
            return result
    total = odd_sum(product, addend)
    if mode == "rm":
        total = _signed_zero_down(total, product, addend)
    # Infinite terms have no error to speak of: two_sum's is NaN, which _to_odd takes for exact.
    return narrow(total, _F32, mode)


def divide_f32(a: Array, b: Array, mode: str) -> Array:
    """a / b of f32 values."""
    if mode == "rn":
        return np.divide(a, b)
    return narrow(a.astype(_F64) / b.astype(_F64), _F32, mode)


def square_root_f32(a: Array, mode: str) -> Array:
    """Square root of f32 values."""
    if mode == "rn":
        return np.sqrt(a)
    return narrow(np.sqrt(a.astype(_F64)), _F32, mode)


def add_f64(a: Array, b: Array, mode: str) -> Array:
    """a + b of f64 values."""
    return np.add(a, b) if mode == "rn" else fma_f64_exact(a, np.ones(1), b, mode)


def multiply_f64(a: Array, b: Array, mode: str) -> Array:
    """a * b of f64 values."""
    if mode == "rn":
        return np.multiply(a, b)
    # A zero of the product's sign changes nothing, not even the sign of a zero product.
    zero = np.copysign(0.0, np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0))
    return fma_f64_exact(a, b, zero, mode)


def fma_f64(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a * b + c of f64 values, rounded once."""
    if mode != "rn":
        return fma_f64_exact(a, b, c, mode)
    product, product_error = two_product(a, b)
    low_sum, low_error = two_sum(c, product_error)
    high, middle = two_sum(product, low_sum)
    result = high + odd_sum(middle, low_error)
    plain = product + c
    result = np.where(result == 0, plain, result)
    size = np.abs(product)
    fits = ((size > 2.0**-960) & (size < 2.0**1000)) | (a == 0) | (b == 0)
    fits = fits & (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990) & (np.abs(c) < 2.0**1000)
    if np.count_nonzero(fits) != fits.size:
        a, b, c = np.broadcast_arrays(a, b, c)
        rare = ~fits
        result[rare] = fma_f64_exact(a[rare], b[rare], c[rare], mode)
    return result


def divide_f64(a: Array, b: Array, mode: str) -> Array:
    """a / b of f64 values.

    The quotient of the significands is rounded to nearest by the host; the sign of the exact residual
    says on which side the true one lies, which two more bits then carry into the final rounding.
    """
    plain: Array = np.divide(a, b)
    if mode == "rn":
        return plain
    a_part, a_exponent = np.frexp(a)
    b_part, b_exponent = np.frexp(b)
    quotient = a_part / b_part
    product, error = two_product(quotient, b_part)
    residual = (a_part - product) - error
    toward = np.sign(residual) * np.where(np.signbit(b_part) ^ np.signbit(quotient), -1.0, 1.0)
    regular = np.isfinite(quotient) & (quotient != 0)
    safe = np.where(regular, quotient, 1.0)
    negative, significand, exponent = decompose(safe)
    nudge = np.where(regular, toward, 0.0).astype(np.int64)
    extended = ((significand.view(np.int64) << 2) + nudge).view(np.uint64)
    scale = a_exponent.astype(np.int64) - b_exponent
    rounded = round_pack(negative, extended, exponent - 2 + scale, nudge != 0, FORMATS["f64"], mode)
    return np.where(regular, rounded.view(_F64), plain)


def square_root_f64(a: Array, mode: str) -> Array:
    """Square root of f64 values; a residual of the scaled argument corrects the host's result."""
    plain: Array = np.sqrt(a)
    if mode == "rn":
        return plain
    part, exponent = np.frexp(a)
    odd = exponent & 1
    part = np.ldexp(part, odd)
    root = np.sqrt(part)
    product, error = two_product(root, root)
    residual = (part - product) - error
    bits = root.view(np.int64)
    bits = bits + (residual > 0) if mode == "rp" else bits - (residual < 0)
    result = np.ldexp(bits.view(_F64), (exponent - odd) >> 1)
    return np.where((a > 0) & np.isfinite(a), result, plain)
