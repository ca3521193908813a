"""Element-by-element operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import DType
from ..ir import (
    AbsOp,
    AddOp,
    AndOp,
    Atan2Op,
    BinaryOp,
    BitcastOp,
    CastOp,
    CeilOp,
    CompareOp,
    CoshOp,
    CosOp,
    DivOp,
    Exp2Op,
    ExpOp,
    FloorDivOp,
    FloorOp,
    FmaOp,
    Log2Op,
    LogOp,
    MaxOp,
    MinOp,
    ModOp,
    MulHiOp,
    MulOp,
    NegOp,
    NotOp,
    OrOp,
    PowOp,
    RoundedBinaryOp,
    RsqrtOp,
    SelectOp,
    ShiftLeftOp,
    ShiftRightOp,
    SinhOp,
    SinOp,
    SqrtOp,
    SubOp,
    TanhOp,
    TanOp,
    TileType,
    TruncDivOp,
    UnaryOp,
    Value,
    XorOp,
)
from ._convert import convert
from ._machine import HANDLERS, Array, Frame, runs
from ._numeric import narrow, wide, wider
from ._rounding import DIRECTED, flush, rounded

__all__ = ["arithmetic", "dtype_of_value", "extremum"]


def dtype_of_value(value: Value) -> DType:
    """The element type of a tile of numbers."""
    assert isinstance(value.type, TileType)
    return value.type.number


# Any: NumPy's functions, of arrays of whatever type
def _unary(op: type[UnaryOp], function: Callable[[Any], Any], *, exact: bool) -> None:
    """Register `function`; where it is not exact it is computed in a wider type."""

    def handler(frame: Frame, op: UnaryOp) -> None:
        dtype = dtype_of_value(op.source)
        flushes = getattr(op, "flush_to_zero", False)
        source = flush(frame[op.source]) if flushes else frame[op.source]
        if getattr(op, "rounding", "") in DIRECTED:
            assert isinstance(op, SqrtOp)
            result = rounded("sqrt", [source], dtype, op.rounding)
        else:
            result = function(wide(source, dtype) if exact else wider(source, dtype))
            result = narrow(result, dtype) if dtype.is_float else result
        frame[op.result] = flush(result) if flushes else result

    HANDLERS[op] = handler


def arithmetic(
    name: str,
    lhs: Array,
    rhs: Array,
    dtype: DType,
    rounding: str = "nearest_even",
    flush_to_zero: bool = False,
) -> Array:
    """add, sub, mul or div of two arrays of one element type."""
    if not dtype.is_float:
        return np.asarray(_ARITHMETIC[name](lhs, rhs))
    if flush_to_zero:
        lhs, rhs = flush(lhs), flush(rhs)
    if rounding in DIRECTED:
        result = rounded(name, [lhs, rhs], dtype, rounding)
    else:
        result = narrow(_ARITHMETIC[name](wide(lhs, dtype), wide(rhs, dtype)), dtype)
    return flush(result) if flush_to_zero else result


# Any: NumPy's functions, of arrays of whatever type
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


def _arithmetic(op: type[RoundedBinaryOp], name: str) -> None:
    def handler(frame: Frame, op: RoundedBinaryOp) -> None:
        dtype = dtype_of_value(op.lhs)
        frame[op.result] = arithmetic(
            name, frame[op.lhs], frame[op.rhs], dtype, op.rounding, op.flush_to_zero
        )

    HANDLERS[op] = handler


def _binary(op: type[BinaryOp], function: Callable[[Any, Any], Any]) -> None:
    def handler(frame: Frame, op: BinaryOp) -> None:
        dtype = dtype_of_value(op.lhs)
        lhs, rhs = frame[op.lhs], frame[op.rhs]
        if dtype.is_float and dtype.bits <= 16:
            frame[op.result] = narrow(function(wide(lhs, dtype), wide(rhs, dtype)), dtype)
        else:
            frame[op.result] = function(lhs, rhs)

    HANDLERS[op] = handler


_unary(NegOp, np.negative, exact=True)
_unary(AbsOp, np.abs, exact=True)
_unary(NotOp, np.invert, exact=True)
_unary(FloorOp, np.floor, exact=True)
_unary(CeilOp, np.ceil, exact=True)
_unary(SqrtOp, np.sqrt, exact=True)
_unary(RsqrtOp, lambda x: 1 / np.sqrt(x), exact=False)
_unary(ExpOp, np.exp, exact=False)
_unary(Exp2Op, np.exp2, exact=False)
_unary(LogOp, np.log, exact=False)
_unary(Log2Op, np.log2, exact=False)
_unary(SinOp, np.sin, exact=False)
_unary(CosOp, np.cos, exact=False)
_unary(TanOp, np.tan, exact=False)
_unary(SinhOp, np.sinh, exact=False)
_unary(CoshOp, np.cosh, exact=False)
_unary(TanhOp, np.tanh, exact=False)

_arithmetic(AddOp, "add")
_arithmetic(SubOp, "sub")
_arithmetic(MulOp, "mul")
_arithmetic(DivOp, "div")
_binary(FloorDivOp, np.floor_divide)
_binary(ModOp, np.mod)
_binary(AndOp, np.bitwise_and)
_binary(OrOp, np.bitwise_or)
_binary(XorOp, np.bitwise_xor)
_binary(ShiftLeftOp, np.left_shift)
_binary(ShiftRightOp, np.right_shift)


@runs(TruncDivOp)
def _truncdiv(frame: Frame, op: TruncDivOp) -> None:
    lhs, rhs = frame[op.lhs], frame[op.rhs]
    quotient = np.floor_divide(lhs, rhs)
    below = (quotient * rhs != lhs) & ((lhs < 0) != (rhs < 0))
    frame[op.result] = quotient + below.astype(lhs.dtype)


@runs(PowOp)
def _pow(frame: Frame, op: PowOp) -> None:
    dtype = dtype_of_value(op.lhs)
    frame[op.result] = narrow(np.power(wider(frame[op.lhs], dtype), wider(frame[op.rhs], dtype)), dtype)


@runs(Atan2Op)
def _atan2(frame: Frame, op: Atan2Op) -> None:
    dtype = dtype_of_value(op.lhs)
    frame[op.result] = narrow(np.arctan2(wider(frame[op.lhs], dtype), wider(frame[op.rhs], dtype)), dtype)


@runs(MulHiOp)
def _mulhi(frame: Frame, op: MulHiOp) -> None:
    dtype = dtype_of_value(op.lhs)
    lhs, rhs = frame[op.lhs], frame[op.rhs]
    if dtype.bits < 64:
        wide_type = np.int64 if dtype.is_signed else np.uint64
        product = lhs.astype(wide_type) * rhs.astype(wide_type)
        frame[op.result] = (product >> wide_type(dtype.bits)).astype(dtype.dtype)
        return
    high = _unsigned_high(lhs.astype(np.uint64), rhs.astype(np.uint64)).astype(dtype.dtype)
    if dtype.is_signed:  # a negative factor counts 2^64 too much of the other one
        high = high - np.where(lhs < 0, rhs, 0) - np.where(rhs < 0, lhs, 0)
    frame[op.result] = high


def _unsigned_high(lhs: Array, rhs: Array) -> Array:
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = lhs >> half, lhs & mask, rhs >> half, rhs & mask
    middle = a * d + ((b * d) >> half)  # fits: (2^32 - 1)^2 + 2^32 - 1 < 2^64
    return np.asarray(a * c + (middle >> half) + ((b * c + (middle & mask)) >> half))


def extremum(lhs: Array, rhs: Array, kind: str, propagate_nan: bool) -> Array:
    """The larger or smaller of two; of zeros, +0 is the larger one."""
    largest = kind == "max"
    if lhs.dtype.kind != "f":
        return np.maximum(lhs, rhs) if largest else np.minimum(lhs, rhs)
    if propagate_nan:
        result = np.maximum(lhs, rhs) if largest else np.minimum(lhs, rhs)
    else:
        result = np.fmax(lhs, rhs) if largest else np.fmin(lhs, rhs)
    if (result == 0).any():
        zeros = (lhs == 0) & (rhs == 0)
        result = np.where(zeros, lhs + rhs if largest else -(-lhs + -rhs), result)
    return np.asarray(result)


@runs(MaxOp)
def _max(frame: Frame, op: MaxOp) -> None:
    dtype = dtype_of_value(op.lhs)
    lhs, rhs = wide(frame[op.lhs], dtype), wide(frame[op.rhs], dtype)
    if op.flush_to_zero:
        lhs, rhs = flush(lhs), flush(rhs)
    frame[op.result] = narrow(extremum(lhs, rhs, "max", op.propagate_nan), dtype)


@runs(MinOp)
def _min(frame: Frame, op: MinOp) -> None:
    dtype = dtype_of_value(op.lhs)
    lhs, rhs = wide(frame[op.lhs], dtype), wide(frame[op.rhs], dtype)
    if op.flush_to_zero:
        lhs, rhs = flush(lhs), flush(rhs)
    frame[op.result] = narrow(extremum(lhs, rhs, "min", op.propagate_nan), dtype)


@runs(FmaOp)
def _fma(frame: Frame, op: FmaOp) -> None:
    """Rounded once: the product is exact in the wider type, and so is the sum of narrow types but for ties."""
    dtype = dtype_of_value(op.lhs)
    operands = [frame[v] for v in (op.lhs, op.rhs, op.acc)]
    if op.flush_to_zero:
        operands = [flush(a) for a in operands]
    if op.rounding in DIRECTED:
        result = rounded("fma", operands, dtype, op.rounding)
    elif dtype.bits == 64:
        result = _fma64(*operands)
    else:
        lhs, rhs, acc = (a.astype(np.float64) for a in operands)
        result = _round_sum(lhs * rhs, acc, dtype)
    frame[op.result] = flush(result) if op.flush_to_zero else result


def _round_sum(a: Array, b: Array, dtype: DType) -> Array:
    """`a + b`, both float64, rounded once to a narrower type: the float64 sum is made odd where inexact."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total)
    away = inexact & ((error < 0) == (total > 0))
    bits = np.where(away, bits - 1, bits)
    odd = np.where(inexact, bits | 1, bits).astype(np.int64).view(np.float64)
    return narrow(odd, dtype)


def _fma64(lhs: Array, rhs: Array, acc: Array) -> Array:
    """float64 has no wider type: exact rational arithmetic, element by element."""
    from fractions import Fraction

    lhs, rhs, acc = np.broadcast_arrays(lhs, rhs, acc)
    result = lhs * rhs + acc
    finite = np.isfinite(lhs) & np.isfinite(rhs) & np.isfinite(acc)
    for where in zip(*np.nonzero(finite), strict=True):
        exact = Fraction(float(lhs[where])) * Fraction(float(rhs[where])) + Fraction(float(acc[where]))
        if exact:
            try:
                result[where] = float(exact)
            except OverflowError:
                result[where] = np.inf if exact > 0 else -np.inf
    return np.asarray(result)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@runs(CompareOp)
def _compare(frame: Frame, op: CompareOp) -> None:
    dtype = dtype_of_value(op.lhs)
    lhs, rhs = wide(frame[op.lhs], dtype), wide(frame[op.rhs], dtype)
    frame[op.result] = _COMPARE[op.predicate](lhs, rhs)


@runs(SelectOp)
def _select(frame: Frame, op: SelectOp) -> None:
    frame[op.result] = np.where(frame[op.condition], frame[op.if_true], frame[op.if_false])


@runs(CastOp)
def _cast(frame: Frame, op: CastOp) -> None:
    frame[op.result] = convert(
        frame[op.source], dtype_of_value(op.source), dtype_of_value(op.result), op.rounding
    )


@runs(BitcastOp)
def _bitcast(frame: Frame, op: BitcastOp) -> None:
    frame[op.result] = np.ascontiguousarray(frame[op.source]).view(dtype_of_value(op.result).dtype)
