"""Reductions and matrix products."""

from __future__ import annotations

import math

from ..dtypes import DType
from ..ir import ArgReduceOp, MmaOp, MmaScaledOp, ReduceOp, ScanOp
from ..tileir import ComparisonOrdering, ComparisonPredicate, types
from ..tileir import Value as TileValue
from ._elementwise import ROUNDINGS, dtype_of_value
from ._lowerer import Lowerer, lowers, signedness

__all__ = ["combined", "identity"]


def identity(kind: str, dtype: DType) -> int | float:
    """What changes nothing when it is combined: of a sum of floats that is -0.0."""
    if kind in ("sum", "prod"):
        if dtype.is_float:
            return -0.0 if kind == "sum" else 1.0
        return 0 if kind == "sum" else 1
    if dtype.is_float:
        return -math.inf if kind == "max" else math.inf
    return dtype.lowest if kind == "max" else dtype.highest


def combined(
    b: Lowerer, op: ReduceOp | ScanOp, dtype: DType, element: TileValue, acc: TileValue
) -> TileValue:
    kind, rounding, flush = op.kind, ROUNDINGS[op.rounding], op.flush_to_zero
    if kind == "sum":
        return b.fn.addf(acc, element, rounding, flush) if dtype.is_float else b.fn.addi(acc, element)
    if kind == "prod":
        return b.fn.mulf(acc, element, rounding, flush) if dtype.is_float else b.fn.muli(acc, element)
    assert isinstance(op, ReduceOp)
    if dtype.is_float:
        extreme = b.fn.maxf if kind == "max" else b.fn.minf
        return extreme(acc, element, op.propagate_nan, flush)
    whole = b.fn.maxi if kind == "max" else b.fn.mini
    return whole(acc, element, signedness(dtype))


@lowers(ReduceOp)
def _reduce(b: Lowerer, op: ReduceOp) -> None:
    dtype = dtype_of_value(op.source)
    with b.fn.reduce([b[op.source]], op.axis, [identity(op.kind, dtype)]) as body:
        element, acc = body.arguments
        b.fn.yield_(combined(b, op, dtype, element, acc))
    (b[op.result],) = body.results


@lowers(ArgReduceOp)
def _arg_reduce(b: Lowerer, op: ArgReduceOp) -> None:
    """Value and position are reduced together; of equal values the lower position wins."""
    dtype = dtype_of_value(op.source)
    source = b[op.source]
    shape = source.tile_type.shape
    position = b.fn.iota(types.tile(types.i32, (shape[op.axis],)))
    position = b.fn.reshape(position, [n if i == op.axis else 1 for i, n in enumerate(shape)])
    position = b.fn.broadcast(position, shape)
    neutral = identity(op.kind, dtype)
    if dtype.is_float and not op.propagate_nan:
        neutral = math.nan  # worse than every number, and than a NaN that has a place
    identities = [neutral, (1 << 31) - 1]
    with b.fn.reduce([source, position], op.axis, identities) as body:
        value, best, index, best_index = body.arguments
        takes = _takes(b, op, dtype, value, best, index, best_index)
        b.fn.yield_(b.fn.select(takes, value, best), b.fn.select(takes, index, best_index))
    b[op.result] = body.results[1]


def _takes(
    b: Lowerer,
    op: ArgReduceOp,
    dtype: DType,
    value: TileValue,
    best: TileValue,
    index: TileValue,
    best_index: TileValue,
) -> TileValue:
    """Whether an element is to replace the best one so far; a NaN is better than any number, or worse."""
    better_than = ComparisonPredicate.GREATER_THAN if op.kind == "max" else ComparisonPredicate.LESS_THAN
    earlier = b.fn.cmpi(ComparisonPredicate.LESS_THAN, index, best_index)
    equal_to = ComparisonPredicate.EQUAL
    if not dtype.is_float:
        better = b.fn.cmpi(better_than, value, best, signedness(dtype))
        equal = b.fn.cmpi(equal_to, value, best)
        return b.fn.binary("ori", better, b.fn.binary("andi", equal, earlier))
    unordered = ComparisonOrdering.UNORDERED
    better = b.fn.cmpf(better_than, value, best)
    equal = b.fn.cmpf(equal_to, value, best)
    is_nan = b.fn.cmpf(ComparisonPredicate.NOT_EQUAL, value, value, unordered)
    best_is_nan = b.fn.cmpf(ComparisonPredicate.NOT_EQUAL, best, best, unordered)
    both_nan = b.fn.binary("andi", is_nan, best_is_nan)
    wins = is_nan if op.propagate_nan else best_is_nan
    first_nan = b.fn.binary("andi", wins, b.fn.binary("xori", is_nan, best_is_nan))
    equal = b.fn.binary("andi", b.fn.binary("ori", equal, both_nan), earlier)
    return b.fn.binary("ori", b.fn.binary("ori", better, first_nan), equal)


@lowers(MmaOp)
def _mma(b: Lowerer, op: MmaOp) -> None:
    lhs, rhs, acc = b[op.lhs], b[op.rhs], b[op.acc]
    if dtype_of_value(op.acc).is_float:
        b[op.result] = b.fn.mmaf(lhs, rhs, acc, op.fast_acc)
    else:
        signs = signedness(dtype_of_value(op.lhs)), signedness(dtype_of_value(op.rhs))
        b[op.result] = b.fn.mmai(lhs, rhs, acc, *signs)


@lowers(MmaScaledOp)
def _mma_scaled(b: Lowerer, op: MmaScaledOp) -> None:
    b[op.result] = b.fn.mmaf_scaled(b[op.lhs], b[op.rhs], b[op.acc], b[op.lhs_scale], b[op.rhs_scale])
