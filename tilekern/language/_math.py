"""Arithmetic and mathematics, element by element, with broadcasting and promotion.

Functions of one float take whole numbers too, as float32. Results are those of docs/language.md.

Options: `rounding_mode` says how a float result is rounded (None: to nearest even; integers take no other),
`flush_to_zero` makes zeros of float32 numbers too small to be normal, given or computed.
"""

from __future__ import annotations

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only
from ._rounding import RoundingMode

__all__ = [
    "abs",
    "add",
    "atan2",
    "bitwise_and",
    "bitwise_lshift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_rshift",
    "bitwise_xor",
    "ceil",
    "cos",
    "cosh",
    "divmod",
    "equal",
    "exp",
    "exp2",
    "floor",
    "floordiv",
    "fma",
    "greater",
    "greater_equal",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log2",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "mulhi",
    "negative",
    "not_equal",
    "pow",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "truediv",
    "where",
]


def exp(x: Scalar, *, rounding_mode: RoundingMode | None = None) -> Tile:
    """e to the power of `x`; the rounding mode is FULL (as None) or, of float32, APPROX."""
    kernel_only()


def exp2(x: Scalar, *, flush_to_zero: bool = False) -> Tile:
    """2 to the power of `x`."""
    kernel_only()


def log(x: Scalar) -> Tile:
    """Natural logarithm; NaN below zero."""
    kernel_only()


def log2(x: Scalar) -> Tile:
    """Logarithm to base 2; NaN below zero."""
    kernel_only()


def sqrt(x: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False) -> Tile:
    """Square root; NaN below zero. Float32 also takes the rounding mode APPROX."""
    kernel_only()


def rsqrt(x: Scalar, *, flush_to_zero: bool = False) -> Tile:
    """One over the square root."""
    kernel_only()


def sin(x: Scalar) -> Tile:
    """Sine of an angle in radians."""
    kernel_only()


def cos(x: Scalar) -> Tile:
    """Cosine of an angle in radians."""
    kernel_only()


def tan(x: Scalar) -> Tile:
    """Tangent of an angle in radians."""
    kernel_only()


def sinh(x: Scalar) -> Tile:
    """Hyperbolic sine."""
    kernel_only()


def cosh(x: Scalar) -> Tile:
    """Hyperbolic cosine."""
    kernel_only()


def tanh(x: Scalar, *, rounding_mode: RoundingMode | None = None) -> Tile:
    """Hyperbolic tangent; the rounding mode is FULL (as None) or, of float32, APPROX."""
    kernel_only()


def floor(x: Scalar) -> Tile:
    """Largest whole number not above `x`, of the same type."""
    kernel_only()


def ceil(x: Scalar) -> Tile:
    """Smallest whole number not below `x`, of the same type."""
    kernel_only()


def abs(x: Scalar) -> Tile:  # noqa: A001 - cuTile's name
    """Absolute value; the smallest signed integer stays as it is."""
    kernel_only()


def negative(x: Scalar) -> Tile:
    """`-x`; integers wrap."""
    kernel_only()


def bitwise_not(x: Scalar) -> Tile:
    """`~x`: every bit inverted."""
    kernel_only()


def isnan(x: Scalar) -> Tile:
    """True where `x` is not a number."""
    kernel_only()


def add(
    x: Scalar, y: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False
) -> Tile:
    """`x + y`; integers wrap."""
    kernel_only()


def sub(
    x: Scalar, y: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False
) -> Tile:
    """`x - y`; integers wrap."""
    kernel_only()


def mul(
    x: Scalar, y: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False
) -> Tile:
    """`x * y`; integers wrap."""
    kernel_only()


def truediv(
    x: Scalar, y: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False
) -> Tile:
    """`x / y`; of whole numbers in float32. Float32 also takes the rounding modes FULL and APPROX."""
    kernel_only()


def floordiv(x: Scalar, y: Scalar) -> Tile:
    """`x // y`: the quotient of whole numbers rounded down."""
    kernel_only()


def mod(x: Scalar, y: Scalar) -> Tile:
    """`x % y`: what the floor division leaves, with the sign of `y`."""
    kernel_only()


def divmod(x: Scalar, y: Scalar) -> tuple[Tile, Tile]:  # noqa: A001 - Python's name
    """`(x // y, x % y)`."""
    kernel_only()


def mulhi(x: Scalar, y: Scalar) -> Tile:
    """The upper half of the product of integers, which has twice their width."""
    kernel_only()


def atan2(y: Scalar, x: Scalar) -> Tile:
    """Angle of the point (x, y), from -pi to pi; of whole numbers in float32."""
    kernel_only()


def pow(x: Scalar, y: Scalar) -> Tile:  # noqa: A001 - cuTile's name
    """`x ** y`; whole numbers to a constant power of 0 or more."""
    kernel_only()


def bitwise_and(x: Scalar, y: Scalar) -> Tile:
    """`x & y` of integers or bools."""
    kernel_only()


def bitwise_or(x: Scalar, y: Scalar) -> Tile:
    """`x | y` of integers or bools."""
    kernel_only()


def bitwise_xor(x: Scalar, y: Scalar) -> Tile:
    """`x ^ y` of integers or bools."""
    kernel_only()


def bitwise_lshift(x: Scalar, y: Scalar) -> Tile:
    """`x << y`, for 0 <= y < the width of `x`."""
    kernel_only()


def bitwise_rshift(x: Scalar, y: Scalar) -> Tile:
    """`x >> y`, for 0 <= y < the width of `x`; signed integers keep their sign."""
    kernel_only()


def equal(x: Scalar, y: Scalar) -> Tile:
    """`x == y`, a bool tile."""
    kernel_only()


def not_equal(x: Scalar, y: Scalar) -> Tile:
    """`x != y`, a bool tile; true for NaN."""
    kernel_only()


def less(x: Scalar, y: Scalar) -> Tile:
    """`x < y`, a bool tile."""
    kernel_only()


def less_equal(x: Scalar, y: Scalar) -> Tile:
    """`x <= y`, a bool tile."""
    kernel_only()


def greater(x: Scalar, y: Scalar) -> Tile:
    """`x > y`, a bool tile."""
    kernel_only()


def greater_equal(x: Scalar, y: Scalar) -> Tile:
    """`x >= y`, a bool tile."""
    kernel_only()


def minimum(x: Scalar, y: Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
    """The smaller of both; NaN if either is, or only if both are where `propagate_nan` is off."""
    kernel_only()


def maximum(x: Scalar, y: Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
    """The larger of both; NaN if either is, or only if both are where `propagate_nan` is off."""
    kernel_only()


def fma(
    x: Scalar, y: Scalar, z: Scalar, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False
) -> Tile:
    """`x * y + z` of floats, rounded once."""
    kernel_only()


def where(condition: Scalar, x: Scalar, y: Scalar) -> Tile:
    """`x` where the condition holds, else `y`; all three broadcast together. Also of two tiles of pointers."""
    kernel_only()
