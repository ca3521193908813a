"""Operations on tiles element by element.

None of them broadcasts or promotes: operands have one type, which the front end makes them have. What
each means for edge values (division by zero, NaN, overflow) is in docs/language.md.
"""

from __future__ import annotations

from typing import ClassVar

from ..dtypes import DType, bool_
from ._op import Op, Operand, Result
from ._types import PointerType, TileType

__all__ = [
    "AbsOp",
    "AddOp",
    "AndOp",
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
]

_FLOAT = frozenset({"float"})
_INTEGER = frozenset({"int", "uint"})
_NUMBER = _FLOAT | _INTEGER
_BITS = _INTEGER | {"bool"}


def _number_tile(op: Op, kind: object) -> DType:
    """The element type of a tile of numbers that arithmetic takes."""
    if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType):
        raise op.fail(f"operands are tiles of numbers, got {kind}")
    if kind.dtype.restricted:
        raise op.fail(f"{kind.dtype} is for storage and matrix products; cast it first")
    return kind.dtype


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


class NegOp(UnaryOp, mnemonic="neg"):
    """Minus the source; integers wrap."""

    kinds = _NUMBER


class AbsOp(UnaryOp, mnemonic="abs"):
    """Absolute value; the smallest signed integer stays as it is."""

    kinds = _NUMBER


class NotOp(UnaryOp, mnemonic="not"):
    """Every bit inverted."""

    kinds = _BITS


class ExpOp(UnaryOp, mnemonic="exp"):
    """e to the source."""


class Exp2Op(UnaryOp, mnemonic="exp2"):
    """2 to the source."""


class LogOp(UnaryOp, mnemonic="log"):
    """Natural logarithm."""


class Log2Op(UnaryOp, mnemonic="log2"):
    """Logarithm to base 2."""


class SqrtOp(UnaryOp, mnemonic="sqrt"):
    """Square root, rounded to nearest even."""


class RsqrtOp(UnaryOp, mnemonic="rsqrt"):
    """One over the square root."""


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


class TanhOp(UnaryOp, mnemonic="tanh"):
    """Hyperbolic tangent."""


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


class AddOp(BinaryOp, mnemonic="add"):
    """Sum; integers wrap."""


class SubOp(BinaryOp, mnemonic="sub"):
    """Difference; integers wrap."""


class MulOp(BinaryOp, mnemonic="mul"):
    """Product; integers wrap."""


class DivOp(BinaryOp, mnemonic="div"):
    """Quotient of floats, rounded to nearest even."""

    kinds = _FLOAT


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


class _ExtremumOp(BinaryOp):
    propagate_nan: bool = True


class MaxOp(_ExtremumOp, mnemonic="max"):
    """The larger one. A NaN wins, or loses unless both are where `propagate_nan` is false."""


class MinOp(_ExtremumOp, mnemonic="min"):
    """The smaller one. A NaN wins, or loses unless both are where `propagate_nan` is false."""


class MulHiOp(BinaryOp, mnemonic="mulhi"):
    """The upper half of the double-width product of unsigned integers."""

    kinds = frozenset({"uint"})


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

    lhs: Operand
    rhs: Operand
    acc: Operand
    result: Result

    def verify(self) -> None:
        types = {v.type for v in (self.lhs, self.rhs, self.acc, self.result)}
        if len(types) != 1:
            raise self.fail("needs one type for operands and result")
        if not _number_tile(self, self.lhs.type).is_float:
            raise self.fail(f"takes float elements, got {self.lhs.type}")


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
        if self.condition.type != kind.with_dtype(bool_):
            raise self.fail(f"the condition is a bool tile of shape {kind.shape}, got {self.condition.type}")


class CastOp(Op, mnemonic="cast"):
    """The same numbers in another element type than bool; float to integer drops the fraction and saturates."""

    source: Operand
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
