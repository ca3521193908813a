"""Operations on tiles element by element.

None of them broadcasts or promotes: operands have one type, which the front end makes them have. What
each means for edge values (division by zero, NaN, overflow) is in docs/language.md.

Float operations whose result is rounded have `rounding`, one of what the class lists as `roundings`, the
first being what is meant when nothing is said; and those that can, `flush_to_zero`: float32 numbers too small
to be normal, given or computed, are zeros of their sign.
"""

from __future__ import annotations

from typing import ClassVar

from ..dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    tfloat32,
)
from ._op import Op, Operand, Result
from ._types import PointerType, TileType

__all__ = [
    "AbsOp",
    "AddOp",
    "AndOp",
    "Atan2Op",
    "BinaryOp",
    "BitcastOp",
    "CastOp",
    "CeilOp",
    "CompareOp",
    "CosOp",
    "CoshOp",
    "DivOp",
    "Exp2Op",
    "ExpOp",
    "FloorDivOp",
    "FloorOp",
    "FmaOp",
    "Log2Op",
    "LogOp",
    "MaxOp",
    "MinOp",
    "ModOp",
    "MulHiOp",
    "MulOp",
    "NegOp",
    "NotOp",
    "OrOp",
    "PowOp",
    "RoundedBinaryOp",
    "RsqrtOp",
    "SelectOp",
    "ShiftLeftOp",
    "ShiftRightOp",
    "SinOp",
    "SinhOp",
    "SqrtOp",
    "SubOp",
    "TanOp",
    "TanhOp",
    "TruncDivOp",
    "UnaryOp",
    "XorOp",
    "cast_roundings",
]

_FLOAT = frozenset({"float"})
_INTEGER = frozenset({"int", "uint"})
_NUMBER = _FLOAT | _INTEGER
_BITS = _INTEGER | {"bool"}

_DIRECTED = ("nearest_even", "zero", "negative_inf", "positive_inf")
"""Ways to round exactly."""
_FLOAT32_ONLY = ("approx", "full")
"""Ways to round that only float32 has, but for the `full` that exp and tanh always have."""


def _number_tile(op: Op, kind: object) -> DType:
    """The element type of a tile of numbers that arithmetic takes."""
    if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType):
        raise op.fail(f"operands are tiles of numbers, got {kind}")
    if kind.dtype.restricted:
        raise op.fail(f"{kind.dtype} is for storage and matrix products; cast it first")
    return kind.dtype


def _check_rounding(op: Op, dtype: DType, roundings: tuple[str, ...], rounding: str, flush: bool) -> None:
    """Check how a result is rounded, and whether small numbers may be flushed."""
    if rounding != roundings[0]:
        if not dtype.is_float:
            raise op.fail(f"rounding {rounding} of {dtype}; only floats are rounded")
        if rounding not in roundings:
            raise op.fail(f"rounding is one of {', '.join(roundings)}, got {rounding}")
        if rounding in _FLOAT32_ONLY and dtype is not float32:
            raise op.fail(f"rounding {rounding} is for f32, got {dtype}")
    if flush and dtype is not float32:
        raise op.fail(f"flush_to_zero is for f32, got {dtype}")


class UnaryOp(Op):
    """Base of operations on one tile, with a result of the same type."""

    kinds: ClassVar[frozenset[str]] = _FLOAT
    """Kinds of element types it takes."""

    source: Operand
    result: Result

    def verify(self) -> None:
        dtype = _number_tile(self, self.source.type)
        if dtype.kind not in self.kinds:
            raise self.fail(f"takes {' or '.join(sorted(self.kinds))} elements, got {dtype}")
        if self.result.type != self.source.type:
            raise self.fail(f"the result has the type of the source, got {self.result.type}")


class _RoundedUnaryOp(UnaryOp):
    roundings: ClassVar[tuple[str, ...]] = ("nearest_even",)
    flushes: ClassVar[bool] = False

    rounding: str = "nearest_even"
    flush_to_zero: bool = False

    def verify(self) -> None:
        super().verify()
        dtype = _number_tile(self, self.source.type)
        if self.flush_to_zero and not self.flushes:
            raise self.fail("has no flush_to_zero")
        _check_rounding(self, dtype, self.roundings, self.rounding, self.flush_to_zero)


class NegOp(UnaryOp, mnemonic="neg"):
    """Minus the source; integers wrap."""

    kinds = _NUMBER


class AbsOp(UnaryOp, mnemonic="abs"):
    """Absolute value; the smallest signed integer stays as it is."""

    kinds = _NUMBER


class NotOp(UnaryOp, mnemonic="not"):
    """Every bit inverted."""

    kinds = _BITS


class ExpOp(_RoundedUnaryOp, mnemonic="exp"):
    """e to the source."""

    roundings = ("full", "approx")
    rounding = "full"


class Exp2Op(_RoundedUnaryOp, mnemonic="exp2"):
    """2 to the source."""

    flushes = True


class LogOp(UnaryOp, mnemonic="log"):
    """Natural logarithm."""


class Log2Op(UnaryOp, mnemonic="log2"):
    """Logarithm to base 2."""


class SqrtOp(_RoundedUnaryOp, mnemonic="sqrt"):
    """Square root."""

    roundings = (*_DIRECTED, "approx")
    flushes = True


class RsqrtOp(_RoundedUnaryOp, mnemonic="rsqrt"):
    """One over the square root."""

    flushes = True


class SinOp(UnaryOp, mnemonic="sin"):
    """Sine of radians."""


class CosOp(UnaryOp, mnemonic="cos"):
    """Cosine of radians."""


class TanOp(UnaryOp, mnemonic="tan"):
    """Tangent of radians."""


class SinhOp(UnaryOp, mnemonic="sinh"):
    """Hyperbolic sine."""


class CoshOp(UnaryOp, mnemonic="cosh"):
    """Hyperbolic cosine."""


class TanhOp(_RoundedUnaryOp, mnemonic="tanh"):
    """Hyperbolic tangent."""

    roundings = ("full", "approx")
    rounding = "full"


class FloorOp(UnaryOp, mnemonic="floor"):
    """The largest whole number not above the source, as a float."""


class CeilOp(UnaryOp, mnemonic="ceil"):
    """The smallest whole number not below the source, as a float."""


class BinaryOp(Op):
    """Base of operations on two tiles of one type, with a result of that type."""

    kinds: ClassVar[frozenset[str]] = _NUMBER
    """Kinds of element types it takes."""

    lhs: Operand
    rhs: Operand
    result: Result

    def verify(self) -> None:
        if self.lhs.type != self.rhs.type or self.result.type != self.lhs.type:
            raise self.fail(
                f"needs one type for operands and result, got {self.lhs.type}, {self.rhs.type} -> "
                f"{self.result.type}; insert a cast or broadcast first"
            )
        dtype = _number_tile(self, self.lhs.type)
        if dtype.kind not in self.kinds:
            raise self.fail(f"takes {' or '.join(sorted(self.kinds))} elements, got {dtype}")


class RoundedBinaryOp(BinaryOp):
    """Base of those whose float result is rounded; integers wrap."""

    roundings: ClassVar[tuple[str, ...]] = _DIRECTED

    rounding: str = "nearest_even"
    flush_to_zero: bool = False

    def verify(self) -> None:
        super().verify()
        dtype = _number_tile(self, self.lhs.type)
        _check_rounding(self, dtype, self.roundings, self.rounding, self.flush_to_zero)


class AddOp(RoundedBinaryOp, mnemonic="add"):
    """Sum; integers wrap."""


class SubOp(RoundedBinaryOp, mnemonic="sub"):
    """Difference; integers wrap."""


class MulOp(RoundedBinaryOp, mnemonic="mul"):
    """Product; integers wrap."""


class DivOp(RoundedBinaryOp, mnemonic="div"):
    """Quotient of floats."""

    kinds = _FLOAT
    roundings = (*_DIRECTED, "approx", "full")


class FloorDivOp(BinaryOp, mnemonic="floordiv"):
    """Quotient of integers rounded down, as Python's `//`."""

    kinds = _INTEGER


class TruncDivOp(BinaryOp, mnemonic="truncdiv"):
    """Quotient of integers rounded towards zero, as C's `/`."""

    kinds = _INTEGER


class ModOp(BinaryOp, mnemonic="mod"):
    """Remainder of the floor division, with the sign of `rhs`, as Python's `%`; also of floats."""


class PowOp(BinaryOp, mnemonic="pow"):
    """`lhs` to the power of `rhs`."""

    kinds = _FLOAT


class Atan2Op(BinaryOp, mnemonic="atan2"):
    """Angle of the point (`rhs`, `lhs`), from -pi to pi."""

    kinds = _FLOAT


class _ExtremumOp(BinaryOp):
    propagate_nan: bool = True
    flush_to_zero: bool = False

    def verify(self) -> None:
        super().verify()
        if self.flush_to_zero and _number_tile(self, self.lhs.type) is not float32:
            raise self.fail(f"flush_to_zero is for f32, got {self.lhs.type}")


class MaxOp(_ExtremumOp, mnemonic="max"):
    """The larger one. A NaN wins, or loses unless both are where `propagate_nan` is false."""


class MinOp(_ExtremumOp, mnemonic="min"):
    """The smaller one. A NaN wins, or loses unless both are where `propagate_nan` is false."""


class MulHiOp(BinaryOp, mnemonic="mulhi"):
    """The upper half of the double-width product of integers."""

    kinds = _INTEGER


class AndOp(BinaryOp, mnemonic="and"):
    """Bits set in both."""

    kinds = _BITS


class OrOp(BinaryOp, mnemonic="or"):
    """Bits set in either."""

    kinds = _BITS


class XorOp(BinaryOp, mnemonic="xor"):
    """Bits set in one of the two."""

    kinds = _BITS


class ShiftLeftOp(BinaryOp, mnemonic="shl"):
    """Bits moved up by `rhs` places, 0 <= rhs < width."""

    kinds = _INTEGER


class ShiftRightOp(BinaryOp, mnemonic="shr"):
    """Bits moved down by `rhs` places, 0 <= rhs < width; signed integers keep their sign."""

    kinds = _INTEGER


class FmaOp(Op, mnemonic="fma"):
    """`lhs * rhs + acc`, rounded once."""

    roundings: ClassVar[tuple[str, ...]] = _DIRECTED

    lhs: Operand
    rhs: Operand
    acc: Operand
    rounding: str = "nearest_even"
    flush_to_zero: bool = False
    result: Result

    def verify(self) -> None:
        types = {v.type for v in (self.lhs, self.rhs, self.acc, self.result)}
        if len(types) != 1:
            raise self.fail("needs one type for operands and result")
        dtype = _number_tile(self, self.lhs.type)
        if not dtype.is_float:
            raise self.fail(f"takes float elements, got {self.lhs.type}")
        _check_rounding(self, dtype, self.roundings, self.rounding, self.flush_to_zero)


class CompareOp(Op, mnemonic="compare"):
    """A bool tile: `predicate` is eq, ne, lt, le, gt or ge. With a NaN only `ne` is true."""

    predicates: ClassVar[tuple[str, ...]] = ("eq", "ne", "lt", "le", "gt", "ge")

    lhs: Operand
    rhs: Operand
    predicate: str
    result: Result

    def verify(self) -> None:
        if self.lhs.type != self.rhs.type:
            raise self.fail(f"needs one type for both operands, got {self.lhs.type}, {self.rhs.type}")
        dtype = _number_tile(self, self.lhs.type)
        if dtype is bool_:
            raise self.fail("compares numbers; use xor and not for bool")
        if self.predicate not in self.predicates:
            raise self.fail(f"predicate is one of {', '.join(self.predicates)}, got {self.predicate}")
        assert isinstance(self.lhs.type, TileType)
        if self.result.type != self.lhs.type.with_dtype(bool_):
            raise self.fail(f"the result is a bool tile of the operands' shape, got {self.result.type}")


class SelectOp(Op, mnemonic="select"):
    """`if_true` where the condition holds, else `if_false`."""

    condition: Operand
    if_true: Operand
    if_false: Operand
    result: Result

    def verify(self) -> None:
        kind = self.if_true.type
        if not isinstance(kind, TileType) or self.if_false.type != kind or self.result.type != kind:
            raise self.fail("both choices and the result have one tile type")
        if kind.dtype is float4_e2m1fn:
            raise self.fail(f"does not take {kind.dtype}, of which two share a byte")
        if self.condition.type != kind.with_dtype(bool_):
            raise self.fail(f"the condition is a bool tile of shape {kind.shape}, got {self.condition.type}")


def cast_roundings(source: DType, target: DType) -> tuple[str, ...]:
    """The ways a conversion can round, the usual one first. Where nothing is lost, the only one is that."""
    if not source.is_float or not target.is_float:
        return ("nearest_even",)
    if target is float8_e8m0fnu:
        return ("zero", "positive_inf")
    if target in (float16, bfloat16):
        return ("nearest_even", "zero")
    if target is tfloat32:
        away = ("nearest_away",) if source in (float16, bfloat16, float32) else ()
        return ("nearest_even", "zero", *away)
    if target is float32 and source is float64:
        return _DIRECTED
    return ("nearest_even",)


class CastOp(Op, mnemonic="cast"):
    """The same numbers in another element type than bool; float to integer drops the fraction and saturates.

    Floats are rounded as `cast_roundings` allows.
    """

    source: Operand
    rounding: str = "nearest_even"
    result: Result

    def verify(self) -> None:
        kind, result = self.source.type, self.result.type
        if not isinstance(kind, TileType) or not isinstance(result, TileType) or kind.shape != result.shape:
            raise self.fail(f"source and result are tiles of one shape, got {kind} -> {result}")
        if not isinstance(kind.dtype, DType) or not isinstance(result.dtype, DType):
            raise self.fail("converts numbers")
        if result.dtype is bool_:
            raise self.fail("a bool is no number to convert to; compare with 0")
        if kind == result:
            raise self.fail(f"source and result are both {kind}")
        allowed = cast_roundings(kind.dtype, result.dtype)
        if self.rounding not in allowed:
            raise self.fail(f"{kind.dtype} is converted to {result.dtype} by rounding {' or '.join(allowed)}")


class BitcastOp(Op, mnemonic="bitcast"):
    """The same bits read as another element type of equal width."""

    source: Operand
    result: Result

    def verify(self) -> None:
        kind, result = self.source.type, self.result.type
        if not isinstance(kind, TileType) or not isinstance(result, TileType) or kind.shape != result.shape:
            raise self.fail(f"source and result are tiles of one shape, got {kind} -> {result}")
        if isinstance(kind.dtype, PointerType) or isinstance(result.dtype, PointerType):
            raise self.fail("takes numbers; pointers have no bits of their own")
        if kind.dtype.bits != result.dtype.bits or kind == result:
            raise self.fail(f"needs two element types of one width, got {kind.dtype} and {result.dtype}")
