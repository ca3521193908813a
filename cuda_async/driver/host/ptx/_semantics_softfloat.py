"""Floating-point formats in integers: take values apart, round exact results once, put them together.

An exact finite result is `(-1)**negative * (significand + fraction) * 2**exponent` with a 64-bit
significand and a fraction in [0, 1) of which only "zero or not" is kept (`sticky`). `round_pack` rounds
that to any format in any of PTX's modes. Nothing here depends on the host's rounding or its treatment of
subnormals, so this is the reference as well as the path for everything without a faster one.

The significand of an inexact result must be wide enough that the sticky bit lies below the rounding
position: two bits more than the format's precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._semantics_forms import Array
from ._semantics_wide import (
    add_128,
    bit_length,
    less_128,
    multiply_wide,
    shift_left_128,
    shift_right_jam_128,
    subtract_128,
)

__all__ = ["FORMATS", "Format", "decompose", "fma_f64_exact", "narrow_exact", "round_pack"]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format by its fields.

    Attributes:
        bias: of the exponent field.
        fraction_bits: of the significand, without the implicit one.
        sign_bit: position of the sign.
        largest: bits of the largest finite value.
        infinity: bits of infinity; None where there is none and every overflow saturates.
        nan: bits of the canonical NaN; None where there is none.
    """

    bias: int
    fraction_bits: int
    sign_bit: int
    largest: int
    infinity: int | None
    nan: int | None

    @property
    def lowest_exponent(self) -> int:
        """Exponent of the last place of the subnormals."""
        return 1 - self.bias - self.fraction_bits


FORMATS: dict[str, Format] = {
    "f64": Format(1023, 52, 63, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
    "f32": Format(127, 23, 31, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF),
    "tf32": Format(127, 10, 18, 0x3FBFF, 0x3FC00, 0x3FFFF),
    "bf16": Format(127, 7, 15, 0x7F7F, 0x7F80, 0x7FFF),
    "f16": Format(15, 10, 15, 0x7BFF, 0x7C00, 0x7FFF),
    "e4m3": Format(7, 3, 7, 0x7E, None, 0x7F),
    "e5m2": Format(15, 2, 7, 0x7B, 0x7C, 0x7F),
    "e2m3": Format(1, 3, 5, 0x1F, None, None),
    "e3m2": Format(3, 2, 5, 0x1F, None, None),
    "e2m1": Format(1, 1, 3, 0x7, None, None),
}


def decompose(values: Array) -> tuple[Array, Array, Array]:
    """(negative, significand, exponent) of finite f64 values; the significand has at most 53 bits."""
    bits = values.view(np.uint64)
    field = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
    fraction = bits & np.uint64((1 << 52) - 1)
    significand = fraction | ((field > 0).astype(np.uint64) << np.uint64(52))
    return bits >> np.uint64(63) != 0, significand, np.maximum(field, 1) - 1075


def round_pack(
    negative: Array,
    significand: Array,
    exponent: Array,
    sticky: Array | bool,
    fmt: Format,
    mode: str,
    random: tuple[Array, int] | None = None,
) -> Array:
    """Round once and give the bits, in uint64.

    Args:
        negative: sign of the result, kept for zero.
        significand: uint64; 0 gives a signed zero.
        exponent: int64, of the significand's last place.
        sticky: whether something non-zero lies below the last place.
        fmt: the format to round to.
        mode: `rn`, `rna`, `rz`, `rm`, `rp`, or `rs` (stochastic).
        random: for `rs`: the random integers and how many bits they have.
    """
    length = bit_length(significand)
    last = np.maximum(exponent + length - 1 - fmt.fraction_bits, fmt.lowest_exponent)
    drop = last - exponent
    shift = np.clip(drop, 0, 65).astype(np.uint64)
    kept = np.where(drop >= 0, significand >> shift, significand << np.clip(-drop, 0, 63).astype(np.uint64))
    rest = significand & ~(~_ZERO << shift)
    half = np.where(drop > 0, _ONE << (shift - _ONE), _ZERO)
    inexact = (rest != 0) | sticky
    if mode == "rn":
        up = (rest > half) | ((rest == half) & (sticky | (kept & _ONE != 0)))
        up = up & inexact
        # Beyond the register everything is below half of the last place.
        up = up & (drop <= 64)
    elif mode == "rna":
        up = (rest >= half) & (rest != 0) & (drop <= 64)
    elif mode == "rz":
        up = np.zeros_like(inexact)
    elif mode == "rm":
        up = inexact & negative
    elif mode == "rp":
        up = inexact & ~negative
    else:
        assert random is not None
        up = _stochastic_carry(rest, shift, *random)
    kept = kept + up.astype(np.uint64)
    # The implicit one, where there, adds one to the exponent field; so does a carry out of the fraction.
    bits = kept + ((last - fmt.lowest_exponent).astype(np.uint64) << np.uint64(fmt.fraction_bits))
    over = (bits > np.uint64(fmt.largest)) | (last - fmt.lowest_exponent >= fmt.largest >> fmt.fraction_bits)
    over = over & (significand != 0)
    bits = np.where(significand == 0, np.where(up, _ONE, _ZERO), bits)
    if np.count_nonzero(over):
        bits = np.where(over, _overflow(negative, fmt, mode), bits)
    signed: Array = bits | (negative.astype(np.uint64) << np.uint64(fmt.sign_bit))
    return signed


def _stochastic_carry(rest: Array, shift: Array, random: Array, bits: int) -> Array:
    """Carry out of adding the random bits to the highest discarded ones."""
    width = np.uint64(bits)
    aligned = np.where(
        shift >= width, rest >> (shift - np.minimum(width, shift)), rest << (width - np.minimum(shift, width))
    )
    carry: Array = (aligned + random.astype(np.uint64)) >> width != 0
    return carry


def _overflow(negative: Array, fmt: Format, mode: str) -> Array:
    largest = np.uint64(fmt.largest)
    if fmt.infinity is None or mode == "rz":
        return np.full(negative.shape, largest)
    infinity = np.uint64(fmt.infinity)
    if mode == "rm":
        return np.where(negative, infinity, largest)
    if mode == "rp":
        return np.where(negative, largest, infinity)
    return np.full(negative.shape, infinity)


def narrow_exact(values: Array, fmt: Format, mode: str, random: tuple[Array, int] | None = None) -> Array:
    """Round f64 values to a narrower format; infinities stay where the format has them, NaN is canonical.

    Formats without infinity saturate, those without NaN turn it into their largest value.
    """
    negative, significand, exponent = decompose(values)
    bits = round_pack(negative, significand, exponent, False, fmt, mode, random)
    infinite = np.isinf(values)
    if np.count_nonzero(infinite):
        end = np.uint64(fmt.largest if fmt.infinity is None else fmt.infinity)
        bits = np.where(infinite, end | (negative.astype(np.uint64) << np.uint64(fmt.sign_bit)), bits)
    nan = values != values
    if np.count_nonzero(nan):
        bits = np.where(nan, np.uint64(fmt.largest if fmt.nan is None else fmt.nan), bits)
    return bits


def fma_f64_exact(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a * b + c of f64 values, rounded once in any mode, through a 128-bit sum.

    The larger of product and addend is placed with its leading one at bit 125, the smaller is shifted to
    the same exponent with a sticky last bit. Bits are lost only when the exponents differ by more than
    the spare places, and then no cancellation reaches down to them.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    a_negative, a_significand, a_exponent = decompose(a)
    b_negative, b_significand, b_exponent = decompose(b)
    c_negative, c_significand, c_exponent = decompose(c)
    p_negative = a_negative ^ b_negative
    p_high, p_low = multiply_wide(a_significand, b_significand)
    p_exponent = a_exponent + b_exponent
    p_length = np.where(p_high != 0, 64 + bit_length(p_high), bit_length(p_low))
    p_zero, c_zero = p_length == 0, c_significand == 0
    never = -(10**6)
    p_top = np.where(p_zero, never, p_exponent + p_length - 1)
    c_top = np.where(c_zero, never, c_exponent + bit_length(c_significand) - 1)
    base = np.where(p_zero & c_zero, 0, np.maximum(p_top, c_top) - 125)

    def place(high: Array, low: Array, exponent: Array, zero: Array) -> tuple[Array, Array]:
        move = np.where(zero, 0, exponent - base)
        left = shift_left_128((high, low), np.clip(move, 0, 127))
        right = shift_right_jam_128((high, low), np.clip(-move, 0, 128))
        up = move >= 0
        return np.where(up, left[0], right[0]), np.where(up, left[1], right[1])

    p = place(p_high, p_low, p_exponent, p_zero)
    c_word = (np.zeros_like(c_significand), c_significand)
    q = place(*c_word, c_exponent, c_zero)
    same = p_negative == c_negative
    total = add_128(p, q)
    swap = less_128(p, q)
    bigger = np.where(swap, q[0], p[0]), np.where(swap, q[1], p[1])
    smaller = np.where(swap, p[0], q[0]), np.where(swap, p[1], q[1])
    difference = subtract_128(bigger, smaller)
    high = np.where(same, total[0], difference[0])
    low = np.where(same, total[1], difference[1])
    zero = (high == 0) & (low == 0)
    negative = np.where(same, p_negative, np.where(swap, c_negative, p_negative))
    negative = np.where(zero & ~same, mode == "rm", negative)
    # Normalise: the leading one to bit 127, then the high word and a sticky bit say it all.
    length = np.where(high != 0, 64 + bit_length(high), bit_length(low))
    high, low = shift_left_128((high, low), 128 - np.maximum(length, 1))
    bits = round_pack(negative, high, base + length - 64, low != 0, _F64, mode)
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    result: Array = bits.view(np.float64)
    if np.count_nonzero(special):
        addend_only = np.isfinite(a) & np.isfinite(b)
        result = np.where(special, np.where(addend_only, c, a * b + c), result)
    return result


_F64 = FORMATS["f64"]
