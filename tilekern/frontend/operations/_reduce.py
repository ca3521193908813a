"""Reductions, scans and matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bfloat16, bool_, float16, float32, int8, int32, uint8
from ...ir import MMA_TYPES, ArgReduceOp, MmaOp, ReduceOp, ScanOp, TileType, Value
from .._promotion import as_tile, broadcast_shape, cast, common_dtype
from .._promotion import broadcast_to as broadcast_value
from .._promotion import reshape as reshape_value
from .._values import describe, tile_type
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["matmul"]


def _operand(t: Translator, x: object, name: str) -> Value:
    value = as_tile(t, x)
    kind = tile_type(value)
    if kind.number.restricted:
        raise t.wrong_type(
            f"{name} does not take {kind.number.name}; convert first, as in x.astype(tk.float32)"
        )
    return cast(t, value, int32) if kind.number is bool_ else value


def _axes(t: Translator, value: Value, axis: object) -> list[int]:
    rank = tile_type(value).rank
    if axis is None:
        return list(range(rank))
    axes = [t.axis(a, rank) for a in t.static_ints(axis, "axis")]
    if len(set(axes)) != len(axes):
        raise t.wrong_value(f"axis names one twice: {axis}")
    return sorted(axes)


def _reduce(
    t: Translator, kind: str, x: object, axis: object, keepdims: object, propagate_nan: object = True
) -> object:
    value = _operand(t, x, kind)
    original = tile_type(value)
    keep = t.static_bool(keepdims, "keepdims")
    propagate = t.static_bool(propagate_nan, "propagate_nan")
    axes = _axes(t, value, axis)
    wide = kind in ("sum", "prod") and original.number in (float16, bfloat16)
    if wide:
        value = cast(t, value, float32)
    for position in reversed(axes):
        shape = tile_type(value).shape
        result = Value(tile_type(value).with_shape(shape[:position] + shape[position + 1 :]))
        op = ReduceOp(source=value, axis=position, kind=kind, propagate_nan=propagate, result=result)
        value = t.add(op).result
    if wide:
        value = cast(t, value, original.number)
    if keep:
        value = reshape_value(
            t, value, tuple([1 if i in axes else side for i, side in enumerate(original.shape)])
        )
    return value


@implements(language.sum)
def total(t: Translator, x: object, axis: object, keepdims: object) -> object:
    return _reduce(t, "sum", x, axis, keepdims)


@implements(language.prod)
def product(t: Translator, x: object, axis: object, keepdims: object) -> object:
    return _reduce(t, "prod", x, axis, keepdims)


@implements(language.max)
def largest(t: Translator, x: object, axis: object, keepdims: object, propagate_nan: object) -> object:
    return _reduce(t, "max", x, axis, keepdims, propagate_nan)


@implements(language.min)
def smallest(t: Translator, x: object, axis: object, keepdims: object, propagate_nan: object) -> object:
    return _reduce(t, "min", x, axis, keepdims, propagate_nan)


def _arg_reduce(t: Translator, kind: str, x: object, axis: object, keepdims: object) -> object:
    value = _operand(t, x, f"arg{kind}")
    original = tile_type(value)
    keep = t.static_bool(keepdims, "keepdims")
    if axis is None:
        value, position = reshape_value(t, value, (original.size,)), 0
        kept: tuple[int, ...] = (1,) * original.rank
    else:
        position = t.axis(axis, original.rank)
        kept = tuple([1 if i == position else side for i, side in enumerate(original.shape)])
    shape = tile_type(value).shape
    result = Value(TileType(int32, shape[:position] + shape[position + 1 :]))
    found = t.add(ArgReduceOp(source=value, axis=position, kind=kind, result=result)).result
    return reshape_value(t, found, kept) if keep else found


@implements(language.argmax)
def argmax(t: Translator, x: object, axis: object, keepdims: object) -> object:
    return _arg_reduce(t, "max", x, axis, keepdims)


@implements(language.argmin)
def argmin(t: Translator, x: object, axis: object, keepdims: object) -> object:
    return _arg_reduce(t, "min", x, axis, keepdims)


def _scan(t: Translator, kind: str, x: object, axis: object, reverse: object) -> object:
    value = _operand(t, x, f"cum{kind}")
    dtype = tile_type(value).number
    backwards = t.static_bool(reverse, "reverse")
    position = t.axis(axis, tile_type(value).rank)
    wide = dtype in (float16, bfloat16)
    if wide:
        value = cast(t, value, float32)
    op = ScanOp(source=value, axis=position, kind=kind, reverse=backwards, result=Value(value.type))
    value = t.add(op).result
    return cast(t, value, dtype) if wide else value


@implements(language.cumsum)
def cumsum(t: Translator, x: object, axis: object, reverse: object) -> object:
    return _scan(t, "sum", x, axis, reverse)


@implements(language.cumprod)
def cumprod(t: Translator, x: object, axis: object, reverse: object) -> object:
    return _scan(t, "prod", x, axis, reverse)


# ------------------------------------------------------------------ matrix products


@implements(language.mma)
def mma(t: Translator, x: object, y: object, acc: object) -> object:
    lhs, rhs, sum_ = (as_tile(t, v) for v in (x, y, acc))
    a, b, c = tile_type(lhs), tile_type(rhs), tile_type(sum_)
    if a.number is not b.number and not {a.number, b.number} <= {int8, uint8}:
        raise t.wrong_type(
            f"mma takes two factors of one element type, got {a.number.name} and {b.number.name}; cast one, "
            "or use @, which promotes"
        )
    allowed = MMA_TYPES.get(a.number)
    if allowed is None:
        raise t.wrong_type(f"mma takes no {a.number.name}; it takes {', '.join(d.name for d in MMA_TYPES)}")
    if c.number not in allowed:
        names = " or ".join(d.name for d in allowed)
        raise t.wrong_type(f"{a.number.name} factors accumulate in {names}, got {c.number.name}")
    ranks = (a.rank, b.rank, c.rank)
    if any(rank not in (2, 3) for rank in ranks):
        raise t.wrong_type(
            f"mma takes tiles of rank 2 or 3, got {', '.join(map(describe, (lhs, rhs, sum_)))}"
        )
    batch = broadcast_shape(t, a.shape[:-2], b.shape[:-2])
    wanted = (*batch, a.shape[-2], b.shape[-1])
    if a.shape[-1] != b.shape[-2] or c.shape != wanted:
        raise t.wrong_value(
            f"mma of shapes {a.shape}, {b.shape} and {c.shape}: (M, K), (K, N) and (M, N) are needed"
        )
    lhs = broadcast_value(t, lhs, (*batch, *a.shape[-2:]))
    rhs = broadcast_value(t, rhs, (*batch, *b.shape[-2:]))
    return t.add(MmaOp(lhs=lhs, rhs=rhs, acc=sum_, result=Value(sum_.type))).result


@implements(language.matmul)
def matmul(t: Translator, x: object, y: object) -> object:
    """What `tk.matmul` and `@` mean."""
    lhs, rhs = as_tile(t, x), as_tile(t, y)
    a, b = tile_type(lhs), tile_type(rhs)
    if not 1 <= a.rank <= 3 or not 1 <= b.rank <= 3:
        raise t.wrong_type(f"@ takes tiles of rank 1 to 3, got {describe(lhs)} and {describe(rhs)}")
    dtype = common_dtype(t, a.number, b.number)
    allowed = MMA_TYPES.get(dtype)
    if allowed is None:
        raise t.wrong_type(f"@ takes no {dtype.name}; it takes {', '.join(d.name for d in MMA_TYPES)}")
    lhs, rhs = cast(t, lhs, dtype), cast(t, rhs, dtype)
    if a.rank == 1:
        lhs = reshape_value(t, lhs, (1, *a.shape))
    if b.rank == 1:
        rhs = reshape_value(t, rhs, (*b.shape, 1))
    rows, columns = tile_type(lhs).shape, tile_type(rhs).shape
    if rows[-1] != columns[-2]:
        raise t.wrong_value(f"@ of shapes {a.shape} and {b.shape}: the sides in the middle differ")
    batch = broadcast_shape(t, rows[:-2], columns[:-2])
    acc = t.constant(0, allowed[-1], (*batch, rows[-2], columns[-1]))
    result = mma(t, lhs, rhs, acc)
    assert isinstance(result, Value)
    # the product has the type of the factors, where that is one to compute in
    if not dtype.restricted and dtype.is_float:
        result = cast(t, result, dtype)
    shape = list(tile_type(result).shape)
    if a.rank == 1:
        del shape[-2]
    if b.rank == 1:
        del shape[-1]
    return reshape_value(t, result, tuple(shape))
