"""Directed rounding and flushing: what `rounding_mode` and `flush_to_zero` mean.

Theory. An operation is computed to nearest even in float64, and how far the exact result lies from that is
known by its sign ("rest"): from error-free transformations for operands of 32 bits and less, whose sums,
products, quotients and roots neither overflow nor lose anything there, and from exact rational arithmetic for
float64. The nearest number of the element type is then a step too high, a step too low, or the result itself;
which of them is seen by comparing it with value and rest, and a directed mode takes that step back.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ..dtypes import DType, tfloat32
from ._machine import Array
from ._numeric import narrow

__all__ = ["DIRECTED", "flush", "nearest_away", "round_directed", "rounded"]

DIRECTED = ("zero", "negative_inf", "positive_inf")
"""Modes that need the theory above; the others round to nearest, or give something as good."""

_SMALLEST_NORMAL = np.float32(2.0**-126)


def flush(array: Array) -> Array:
    """float32 numbers too small to be normal as zeros of their sign."""
    return np.where(np.abs(array) < _SMALLEST_NORMAL, np.copysign(np.float32(0), array), array)


def rounded(name: str, operands: list[Array], dtype: DType, mode: str) -> Array:
    """add, sub, mul, div, sqrt or fma of floats of one type, rounded once in a directed mode."""
    if name == "sub":
        name, operands = "add", [operands[0], -operands[1]]
    wide = [np.asarray(a, np.float64) for a in np.broadcast_arrays(*operands)]
    value, rest = (_in_rationals if dtype.bits == 64 else _IN_FLOAT64[name])(name, wide)
    result = round_directed(value, rest, dtype, mode)
    if mode == "negative_inf" and name in ("add", "fma"):
        # an exact zero of terms that cancel is -0.0 in this mode alone
        first = wide[0] if name == "add" else wide[0] * wide[1]
        negative = np.signbit(first) | np.signbit(wide[-1])
        zero = (value == 0) & (rest == 0) & negative
        result = np.where(zero, np.array(-0.0, result.dtype), result)
    return result


def round_directed(value: Array, rest: Array | None, dtype: DType, mode: str) -> Array:
    """float64 `value`, from which the exact number differs by something of the sign of `rest`, as `dtype`."""
    near = narrow(value, dtype)
    back = near.astype(np.float64)
    below, above = back < value, back > value
    sign = value
    if rest is not None:
        same = back == value
        below |= same & (rest > 0)
        above |= same & (rest < 0)
        sign = np.where(value == 0, rest, value)
    up, down = below, above
    if mode == "zero":
        up, down = below & (sign < 0), above & (sign > 0)
    elif mode == "negative_inf":
        up = np.zeros_like(below)
    else:
        down = np.zeros_like(above)
    return _step(near, up, down, dtype)


def nearest_away(value: Array) -> Array:
    """To tfloat32, ties away from zero; of float32 numbers."""
    bits = value.astype(np.float32).view(np.uint32)
    moved = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(value), moved, value.astype(np.float32))


def _step(array: Array, up: Array, down: Array, dtype: DType) -> Array:
    """The next number above or below, where asked for."""
    bits = array.view(f"i{array.dtype.itemsize}")
    one = bits.dtype.type(1 << 13 if dtype is tfloat32 else 1)
    outwards = np.where(np.signbit(array.astype(np.float64)), down, up)
    moved = np.where(outwards, bits + one, bits - one)
    # from zero there is no step inwards: the next number has the other sign
    is_zero = array.astype(np.float64) == 0
    lowest = np.array(np.iinfo(bits.dtype).min, bits.dtype) | one
    moved = np.where(is_zero & up, one, np.where(is_zero & down, lowest, moved))
    return np.where(up | down, moved, bits).astype(bits.dtype).view(array.dtype)


# ------------------------------------------------------------------ value and rest in float64

_Exact = tuple[Array, Array]


def _two_sum(a: Array, b: Array) -> _Exact:
    """A sum and what it lost."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def _two_product(a: Array, b: Array) -> _Exact:
    """A product and what it lost; nothing overflows for operands that are float32 or roots of those."""
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    product = a * b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Array) -> _Exact:
    scaled = a * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - a)
    return high, a - high


def _add(name: str, operands: list[Array]) -> _Exact:
    return _finite(*_two_sum(*operands))


def _mul(name: str, operands: list[Array]) -> _Exact:
    return _finite(operands[0] * operands[1], np.zeros_like(operands[0]))  # exact: 24 bits by 24


def _fma(name: str, operands: list[Array]) -> _Exact:
    return _finite(*_two_sum(operands[0] * operands[1], operands[2]))


def _div(name: str, operands: list[Array]) -> _Exact:
    x, y = operands
    quotient = x / y
    product, lost = _two_product(quotient, y)
    return _finite(quotient, ((x - product) - lost) * np.sign(y))


def _sqrt(name: str, operands: list[Array]) -> _Exact:
    root = np.sqrt(operands[0])
    square, lost = _two_product(root, root)
    return _finite(root, (operands[0] - square) - lost)


def _finite(value: Array, rest: Array) -> _Exact:
    return value, np.where(np.isfinite(value), rest, 0.0)


_IN_FLOAT64: dict[str, Callable[[str, list[Array]], _Exact]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "sqrt": _sqrt,
    "fma": _fma,
}

# ------------------------------------------------------------------ value and rest of float64 itself


def _in_rationals(name: str, operands: list[Array]) -> _Exact:
    """Element by element; infinity comes of finite operands only where the exact result is too large."""
    value = np.asarray(_NEAREST[name](*operands))
    rest = np.zeros_like(value)
    fits = np.logical_and.reduce([np.isfinite(a) for a in operands])
    if name == "sqrt":
        fits &= operands[0] >= 0
    if name == "div":
        fits &= operands[1] != 0
    for place in zip(*np.nonzero(fits), strict=True):
        numbers = [Fraction(float(a[place])) for a in operands]
        if name == "fma":  # its two roundings may be more than a step from the result
            value[place] = _nearest(_EXACT[name](*numbers), value[place])
        if np.isinf(value[place]):
            rest[place] = -np.sign(value[place])
            continue
        near = Fraction(float(value[place]))
        difference = numbers[0] - near * near if name == "sqrt" else _EXACT[name](*numbers) - near
        rest[place] = (difference > 0) - (difference < 0)
    return value, rest


def _nearest(exact: Fraction, zero: float) -> float:
    """An exact number in float64; `zero`, which has a sign, where it is none."""
    try:
        return float(exact) if exact else zero
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


_NEAREST: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "fma": lambda a, b, c: a * b + c,
}
_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}
