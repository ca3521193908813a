"""Correct rounding in rational arithmetic: what float operations have to give, from their definition alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from .geometry import Array


class Format(NamedTuple):
    """Digits, exponent of the smallest normal number, largest number, and whether what is too large gives that."""

    digits: int
    least: int
    largest: float
    saturates: bool = False


FORMATS = {
    "float64": Format(53, -1022, float(np.finfo(np.float64).max)),
    "float32": Format(24, -126, float(np.finfo(np.float32).max)),
    "float16": Format(11, -14, 65504.0),
    "bfloat16": Format(8, -126, float(2 - 2**-7) * 2.0**127),
    "float8_e4m3fn": Format(4, -6, 448.0, saturates=True),
    "float8_e5m2": Format(3, -14, 57344.0, saturates=True),
}


def nearest(value: Fraction, dtype: str, mode: str = "RN") -> float:
    """A number other than 0, rounded to an element type."""
    kind = FORMATS[dtype]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    last = max(exponent, kind.least) - (kind.digits - 1)
    scaled = size / Fraction(2) ** last
    whole, rest = divmod(scaled, 1)
    negative = value < 0
    if mode == "RN":
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    else:
        up = rest > 0 and mode == ("RM" if negative else "RP")
    whole += up
    if whole * Fraction(2) ** last > Fraction(kind.largest):
        towards_zero = mode == "RZ" or (mode == "RP" and negative) or (mode == "RM" and not negative)
        result = kind.largest if kind.saturates or towards_zero else math.inf
    else:
        result = math.ldexp(int(whole), last)
    return -result if negative else result


def _add(a: float, b: float) -> Fraction:
    return Fraction(a) + Fraction(b)


def _sub(a: float, b: float) -> Fraction:
    return Fraction(a) - Fraction(b)


def _mul(a: float, b: float) -> Fraction:
    return Fraction(a) * Fraction(b)


def _div(a: float, b: float) -> Fraction:
    return Fraction(a) / Fraction(b)


def _fma(a: float, b: float, c: float) -> Fraction:
    return Fraction(a) * Fraction(b) + Fraction(c)


def _root(a: float) -> Fraction:
    """The square root; what is not rational is off by so little that it rounds alike."""
    whole, denominator = Fraction(a).as_integer_ratio()
    bits = max(0, 200 - whole.bit_length())
    bits += (bits + denominator.bit_length() - 1) % 2  # the denominator is a power of two
    root = math.isqrt(whole << bits)
    exact = root * root == whole << bits
    result = Fraction(4 * root + (0 if exact else 1), 4)
    return result / Fraction(2) ** ((bits + denominator.bit_length() - 1) // 2)


_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "truediv": _div,
    "fma": _fma,
    "sqrt": _root,
}


# Any: NumPy's functions of floats, for what is not finite
_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "fma": lambda a, b, c: a * b + c,
    "sqrt": np.sqrt,
}


def _zero(name: str, numbers: list[float], mode: str) -> float:
    """The zero that an exact result of 0 is."""
    signs = [math.copysign(1, x) for x in numbers]
    if name == "sqrt":
        return numbers[0]
    if name in ("mul", "truediv"):
        return math.copysign(0, signs[0] * signs[1])
    if name == "fma":
        terms, zeros = [signs[0] * signs[1], signs[2]], numbers[2] == 0 and 0 in numbers[:2]
    else:
        terms, zeros = [signs[0], -signs[1] if name == "sub" else signs[1]], numbers == [0, 0]
    if zeros and terms[0] == terms[1]:
        return math.copysign(0, terms[0])
    return -0.0 if mode == "RM" else 0.0


def _one(name: str, numbers: list[float], dtype: str, mode: str) -> float:
    finite = all(map(math.isfinite, numbers))
    if not finite or (name == "truediv" and numbers[1] == 0) or (name == "sqrt" and numbers[0] < 0):
        return float(_NUMPY[name](*[np.float64(x) for x in numbers]))
    exact = _EXACT[name](*numbers)
    return nearest(exact, dtype, mode) if exact else _zero(name, numbers, mode)


def flushed(array: Array) -> Array:
    """float32 numbers too small to be normal as zeros of their sign."""
    return np.where(np.abs(array) < np.float32(2.0**-126), np.copysign(np.float32(0), array), array)


def rounded(name: str, operands: list[Array], dtype: str, mode: str = "RN", flush: bool = False) -> Array:
    """add, sub, mul, truediv, fma or sqrt of floats, rounded once; the result is of the operands' type."""
    kind = operands[0].dtype
    if flush:
        operands = [flushed(a) for a in operands]
    rows = zip(*[a.astype(np.float64).reshape(-1).tolist() for a in operands])
    numbers = np.array([_one(name, list(row), dtype, mode) for row in rows], np.float64)
    result = numbers.reshape(operands[0].shape).astype(np.float32 if kind.itemsize < 4 else kind).astype(kind)
    return flushed(result) if flush else result


def converted(array: Array, dtype: str, kind: np.dtype[Any], mode: str = "RN") -> Array:
    """Numbers of any type as floats of an element type, rounded once."""
    limit = FORMATS[dtype]
    found = []
    for item in (
        array.reshape(-1).tolist()
        if array.dtype.kind in "iub"
        else array.astype(np.float64).reshape(-1).tolist()
    ):
        number = float(item) if isinstance(item, float) else int(item)
        if number == 0 or number != number:
            found.append(float(number))
        elif isinstance(number, float) and math.isinf(number):
            found.append(math.copysign(limit.largest, number) if limit.saturates else number)
        else:
            found.append(nearest(Fraction(number), dtype, mode))
    wide = np.array(found, np.float64).reshape(array.shape)
    return wide.astype(np.float32 if kind.itemsize < 4 else kind).astype(kind)
