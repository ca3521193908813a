"""Computing what is known already.

Matches: integer and bool arithmetic of two constants; comparisons and casts of constants; reshapes and
broadcasts of a constant that is one value everywhere; select on a constant; operations that give back one
of their operands (x + 0, x * 1, x // 1, reshape to the same shape, a reshape of a reshape); accesses through pointers
whose mask is nowhere set, before there are tokens (NVIDIA's assembler drops the order that goes through such a one).
Refuses: float arithmetic (it is left to where it runs), constants that hold many values, integer division by
zero, and x + 0.0, which is not x where x is -0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..dtypes import DType, bool_
from ..ir import (
    AddOp,
    AndOp,
    AtomicCasOp,
    AtomicOp,
    BinaryOp,
    Block,
    BroadcastOp,
    CastOp,
    CompareOp,
    ConstantOp,
    DivOp,
    FloorDivOp,
    Function,
    LoadPointersOp,
    MaxOp,
    MinOp,
    ModOp,
    MulOp,
    NegOp,
    NotOp,
    Op,
    OrOp,
    ReshapeOp,
    RoundedBinaryOp,
    SelectOp,
    StorePointersOp,
    SubOp,
    TileType,
    TokenType,
    Value,
    XorOp,
    walk,
)
from ._pass import Pass

__all__ = ["FoldConstants"]

Number = bool | int | float


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replace operations whose result is known, or is one of their operands."""

    name = "fold-constants"

    def run(self, function: Function) -> bool:
        has_tokens = any(
            isinstance(value.type, TokenType) for op in walk(function.body) for value in op.operands
        )
        return _Folder(has_tokens).block(function.body)


class _Folder:
    def __init__(self, has_tokens: bool) -> None:
        self._has_tokens = has_tokens
        self._replaced: dict[Value, Value] = {}
        self._makers: dict[Value, Op] = {}
        self._changed = False

    def block(self, block: Block) -> bool:
        kept: list[Op] = []
        for op in block.ops:
            op.replace_operands(self._replaced)
            for region in op.regions:
                self.block(region)
            if isinstance(op, StorePointersOp) and self._is_masked(op):
                self._changed = True
                continue
            new = self._fold(op)
            if isinstance(new, Value):
                self._replaced[op.results[0]] = new
                self._changed = True
                continue
            if new is not None:
                new.location = op.location
                self._replaced[op.results[0]] = new.results[0]
                self._changed = True
                op = new
            for result in op.results:
                self._makers[result] = op
            kept.append(op)
        block.ops = kept
        return self._changed

    def _known(self, value: Value) -> Number | None:
        """The one number a value is everywhere, if known."""
        maker = self._makers.get(value)
        if isinstance(maker, ConstantOp) and not isinstance(maker.value, tuple):
            return maker.value
        return None

    def _is_masked(self, op: LoadPointersOp | StorePointersOp | AtomicOp | AtomicCasOp) -> bool:
        """Whether an access is none: then it orders nothing either."""
        return not self._has_tokens and op.mask is not None and self._known(op.mask) is False

    def _fold(self, op: Op) -> Op | Value | None:
        """A constant or a value in place of `op`; None to keep it."""
        if isinstance(op, LoadPointersOp):
            return op.padding if self._is_masked(op) else None
        if isinstance(op, AtomicOp):
            return op.tile if self._is_masked(op) else None  # what it gives has no meaning
        if isinstance(op, AtomicCasOp):
            return op.expected if self._is_masked(op) else None
        if isinstance(op, BinaryOp):
            return self._binary(op)
        if isinstance(op, CompareOp):
            return self._compare(op)
        if isinstance(op, ReshapeOp | BroadcastOp):
            return self._shape(op)
        if isinstance(op, CastOp):
            return self._cast(op)
        if isinstance(op, SelectOp):
            choice = self._known(op.condition)
            if choice is not None:
                return op.if_true if choice else op.if_false
            return op.if_true if op.if_true is op.if_false else None
        if isinstance(op, NegOp | NotOp):
            number = self._known(op.source)
            if number is None or isinstance(number, float):
                return None
            if isinstance(op, NotOp) and isinstance(number, bool):
                return _constant(not number, op.result)
            return _constant(-number if isinstance(op, NegOp) else ~number, op.result)
        return None

    def _binary(self, op: BinaryOp) -> Op | Value | None:
        lhs, rhs = self._known(op.lhs), self._known(op.rhs)
        dtype = _dtype(op.result)
        if isinstance(lhs, int) and isinstance(rhs, int) and not dtype.is_float:
            compute = _BOOL.get(type(op)) if dtype is bool_ else _INTEGER.get(type(op))
            if compute is not None and not (isinstance(op, FloorDivOp | ModOp) and rhs == 0):
                return _constant(compute(lhs, rhs), op.result)
        if dtype is bool_:
            return _bool_identity(op, lhs, rhs)
        if isinstance(op, RoundedBinaryOp) and (op.rounding != op.roundings[0] or op.flush_to_zero):
            return None  # a zero may change its sign, a small number become zero
        if rhs is not None and _is_right_identity(op, rhs, dtype):
            return op.lhs
        if lhs is not None and isinstance(op, AddOp | MulOp) and _is_right_identity(op, lhs, dtype):
            return op.rhs
        if not dtype.is_float and isinstance(op, MulOp) and 0 in (lhs, rhs):
            return _constant(0, op.result)
        if not dtype.is_float and isinstance(op, ModOp) and rhs == 1:
            return _constant(0, op.result)
        return None

    def _compare(self, op: CompareOp) -> Op | None:
        lhs, rhs = self._known(op.lhs), self._known(op.rhs)
        if lhs is None or rhs is None:
            return None
        return _constant(_COMPARE[op.predicate](lhs, rhs), op.result)

    def _shape(self, op: ReshapeOp | BroadcastOp) -> Op | Value | None:
        if op.source.type == op.result.type:
            return op.source
        number = self._known(op.source)
        if number is not None:
            return ConstantOp(value=number, result=Value(op.result.type, op.result.name))
        maker = self._makers.get(op.source)
        if isinstance(op, ReshapeOp) and isinstance(maker, ReshapeOp):
            if maker.source.type == op.result.type:
                return maker.source
            return ReshapeOp(source=maker.source, result=Value(op.result.type, op.result.name))
        return None

    def _cast(self, op: CastOp) -> Op | None:
        number = self._known(op.source)
        dtype = _dtype(op.result)
        if number is None or (isinstance(number, float) and not dtype.is_float):
            return None
        if op.rounding != "nearest_even":
            return None
        if not dtype.is_float:
            return _constant(int(number), op.result)
        if dtype.restricted:
            return None
        return _constant(dtype.rounded(number), op.result)


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, TileType)
    return value.type.number


def _constant(number: Number, like: Value) -> ConstantOp:
    """A constant of the type of `like`; integers wrap to it."""
    dtype = _dtype(like)
    if dtype.is_integer:
        number = int(number) & ((1 << dtype.bits) - 1)
        if number > dtype.highest:
            number -= 1 << dtype.bits
    elif dtype is bool_:
        number = bool(number)
    return ConstantOp(value=number, result=Value(like.type, like.name))


def _is_right_identity(op: Op, number: Number, dtype: DType) -> bool:
    """True when `x op number` is x, to the bit."""
    if isinstance(op, MulOp):
        return number == 1
    if isinstance(op, DivOp | FloorDivOp):
        return number == 1
    if isinstance(op, SubOp):
        return number == 0 and not _is_negative_zero(number)
    if isinstance(op, AddOp):
        return number == 0 and (not dtype.is_float or _is_negative_zero(number))
    return False


def _is_negative_zero(number: Number) -> bool:
    return isinstance(number, float) and number == 0 and np.signbit(number).item()


def _bool_identity(op: BinaryOp, lhs: Number | None, rhs: Number | None) -> Value | None:
    for known, other, constant in ((lhs, op.rhs, op.lhs), (rhs, op.lhs, op.rhs)):
        if known is None:
            continue
        if isinstance(op, AndOp):
            return other if known else constant
        if isinstance(op, OrOp):
            return constant if known else other
        if isinstance(op, XorOp) and not known:
            return other
    return None


_INTEGER: dict[type[Op], Callable[[int, int], int]] = {
    AddOp: lambda a, b: a + b,
    SubOp: lambda a, b: a - b,
    MulOp: lambda a, b: a * b,
    FloorDivOp: lambda a, b: a // b,
    ModOp: lambda a, b: a % b,
    MaxOp: max,
    MinOp: min,
    AndOp: lambda a, b: a & b,
    OrOp: lambda a, b: a | b,
    XorOp: lambda a, b: a ^ b,
}
_BOOL: dict[type[Op], Callable[[int, int], int]] = {
    AndOp: lambda a, b: a & b,
    OrOp: lambda a, b: a | b,
    XorOp: lambda a, b: a ^ b,
}
_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
