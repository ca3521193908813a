"""Reductions, scans and matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...dtypes import bfloat16, bool_, float8_e4m3fn, float8_e5m2, float16, float32, int8, int32, uint8
from ...errors import KernelError
from ...ir import (
    MMA_TYPES,
    SCALED_MMA_TYPES,
    AddOp,
    ArgReduceOp,
    MmaOp,
    MmaScaledOp,
    ReduceOp,
    ScanOp,
    TileType,
    Value,
)
from .._promotion import as_tile, broadcast_shape, cast, common_dtype
from .._promotion import broadcast_to as broadcast_value
from .._promotion import reshape as reshape_value
from .._values import describe, tile_type
from ._options import flush_option, rounding_option
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
    t: Translator,
    kind: str,
    x: object,
    axis: object,
    keepdims: object,
    *,
    propagate_nan: object = True,
    rounding_mode: object = None,
    flush_to_zero: object = False,
) -> object:
    value = _operand(t, x, kind)
    original = tile_type(value)
    keep = t.static_bool(keepdims, "keepdims")
    propagate = t.static_bool(propagate_nan, "propagate_nan")
    axes = _axes(t, value, axis)
    wide = kind in ("sum", "prod") and original.number in (float16, bfloat16)
    if wide:
        value = cast(t, value, float32)
    dtype = tile_type(value).number
    rounding = rounding_option(t, rounding_mode, f"{kind} of {dtype.name}", dtype, AddOp.roundings)
    flush = flush_option(t, flush_to_zero, kind, dtype)
    for position in reversed(axes):
        shape = tile_type(value).shape
        op = ReduceOp(
            source=value,
            axis=position,
            kind=kind,
            propagate_nan=propagate,
            rounding=rounding,
            flush_to_zero=flush,
            result=Value(tile_type(value).with_shape(shape[:position] + shape[position + 1 :])),
        )
        value = t.add(op).result
    if wide:
        value = cast(t, value, original.number)
    if keep:
        value = reshape_value(
            t, value, tuple([1 if i in axes else side for i, side in enumerate(original.shape)])
        )
    return value


@implements(language.sum)
def total(
    t: Translator,
    x: object,
    axis: object,
    keepdims: object,
    rounding_mode: object,
    flush_to_zero: object,
) -> object:
    return _reduce(t, "sum", x, axis, keepdims, rounding_mode=rounding_mode, flush_to_zero=flush_to_zero)


@implements(language.prod)
def product(
    t: Translator,
    x: object,
    axis: object,
    keepdims: object,
    rounding_mode: object,
    flush_to_zero: object,
) -> object:
    return _reduce(t, "prod", x, axis, keepdims, rounding_mode=rounding_mode, flush_to_zero=flush_to_zero)


@implements(language.max)
def largest(
    t: Translator,
    x: object,
    axis: object,
    keepdims: object,
    propagate_nan: object,
    flush_to_zero: object,
) -> object:
    return _reduce(t, "max", x, axis, keepdims, propagate_nan=propagate_nan, flush_to_zero=flush_to_zero)


@implements(language.min)
def smallest(
    t: Translator,
    x: object,
    axis: object,
    keepdims: object,
    propagate_nan: object,
    flush_to_zero: object,
) -> object:
    return _reduce(t, "min", x, axis, keepdims, propagate_nan=propagate_nan, flush_to_zero=flush_to_zero)


def _arg_reduce(
    t: Translator, kind: str, x: object, axis: object, keepdims: object, propagate_nan: object
) -> object:
    propagate = t.static_bool(propagate_nan, "propagate_nan")
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
    op = ArgReduceOp(source=value, axis=position, kind=kind, propagate_nan=propagate, result=result)
    found = t.add(op).result
    return reshape_value(t, found, kept) if keep else found


@implements(language.argmax)
def argmax(t: Translator, x: object, axis: object, keepdims: object, propagate_nan: object) -> object:
    return _arg_reduce(t, "max", x, axis, keepdims, propagate_nan)


@implements(language.argmin)
def argmin(t: Translator, x: object, axis: object, keepdims: object, propagate_nan: object) -> object:
    return _arg_reduce(t, "min", x, axis, keepdims, propagate_nan)


def _scan(
    t: Translator,
    kind: str,
    x: object,
    axis: object,
    reverse: object,
    rounding_mode: object,
    flush_to_zero: object,
) -> object:
    value = _operand(t, x, f"cum{kind}")
    dtype = tile_type(value).number
    backwards = t.static_bool(reverse, "reverse")
    position = t.axis(axis, tile_type(value).rank)
    wide = dtype in (float16, bfloat16)
    if wide:
        value = cast(t, value, float32)
    kept = tile_type(value).number
    op = ScanOp(
        source=value,
        axis=position,
        kind=kind,
        reverse=backwards,
        rounding=rounding_option(t, rounding_mode, f"cum{kind} of {kept.name}", kept, AddOp.roundings),
        flush_to_zero=flush_option(t, flush_to_zero, f"cum{kind}", kept),
        result=Value(value.type),
    )
    value = t.add(op).result
    return cast(t, value, dtype) if wide else value


@implements(language.cumsum)
def cumsum(
    t: Translator,
    x: object,
    axis: object,
    reverse: object,
    rounding_mode: object,
    flush_to_zero: object,
) -> object:
    return _scan(t, "sum", x, axis, reverse, rounding_mode, flush_to_zero)


@implements(language.cumprod)
def cumprod(
    t: Translator,
    x: object,
    axis: object,
    reverse: object,
    rounding_mode: object,
    flush_to_zero: object,
) -> object:
    return _scan(t, "prod", x, axis, reverse, rounding_mode, flush_to_zero)


# ------------------------------------------------------------------ matrix products


@implements(language.mma)
def mma(t: Translator, x: object, y: object, acc: object, use_fast_acc: object) -> object:
    return _mma(t, x, y, acc, t.static_bool(use_fast_acc, "use_fast_acc"))


def _mma(t: Translator, x: object, y: object, acc: object, fast: bool = False) -> Value:
    lhs, rhs, sum_ = (as_tile(t, v) for v in (x, y, acc))
    a, b, c = tile_type(lhs), tile_type(rhs), tile_type(sum_)
    if a.number is not b.number and not {a.number, b.number} <= {int8, uint8}:
        hint = ", or use @, which promotes"
        try:
            common_dtype(t, a.number, b.number)
        except KernelError:
            hint = ""
        raise t.wrong_type(
            f"mma takes two factors of one element type, got {a.number.name} and {b.number.name}; cast one{hint}"
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
    if fast and a.number not in (float8_e4m3fn, float8_e5m2):
        raise t.wrong_type(f"use_fast_acc is for fp8 factors, got {a.number.name}")
    return t.add(MmaOp(lhs=lhs, rhs=rhs, acc=sum_, fast_acc=fast, result=Value(sum_.type))).result


@implements(language.mma_scaled)
def mma_scaled(t: Translator, x: object, x_scale: object, y: object, y_scale: object, acc: object) -> object:
    lhs, lhs_scale, rhs, rhs_scale, sum_ = (as_tile(t, v) for v in (x, x_scale, y, y_scale, acc))
    a, sa, b, sb, c = (tile_type(v) for v in (lhs, lhs_scale, rhs, rhs_scale, sum_))
    if a.number is not b.number or sa.number is not sb.number:
        raise t.wrong_type(
            f"mma_scaled takes two factors of one element type and two scales of one, got {a.number.name} and "
            f"{b.number.name}, {sa.number.name} and {sb.number.name}"
        )
    blocks = SCALED_MMA_TYPES.get((a.number, sa.number))
    if blocks is None:
        pairs = ", ".join(f"{d.name} with {s.name}" for d, s in SCALED_MMA_TYPES)
        raise t.wrong_type(
            f"mma_scaled takes no {a.number.name} with scales of {sa.number.name}; it takes {pairs}"
        )
    if c.number is not float32:
        raise t.wrong_type(f"mma_scaled accumulates in float32, got {c.number.name}")
    if a.rank not in (2, 3) or any(k.rank != a.rank for k in (sa, b, sb, c)):
        raise t.wrong_type(
            "mma_scaled takes tiles that are all of rank 2 or all of rank 3, got "
            + ", ".join(map(describe, (lhs, lhs_scale, rhs, rhs_scale, sum_)))
        )
    batch, rows, inner, columns, parts = a.shape[:-2], a.shape[-2], a.shape[-1], b.shape[-1], sa.shape[-1]
    wanted = [(rows, parts), (inner, columns), (parts, columns), (rows, columns)]
    if [k.shape for k in (sa, b, sb, c)] != [(*batch, *shape) for shape in wanted]:
        raise t.wrong_value(
            f"mma_scaled of shapes {a.shape}, {sa.shape}, {b.shape}, {sb.shape} and {c.shape}: (M, K), (M, S), "
            "(K, N), (S, N) and (M, N) are needed"
        )
    if inner // parts not in blocks:
        raise t.wrong_value(
            f"{' or '.join(map(str, blocks))} elements along K share a scale of {sa.number.name}; here {inner} have "
            f"{parts} scales"
        )
    op = MmaScaledOp(
        lhs=lhs,
        lhs_scale=lhs_scale,
        rhs=rhs,
        rhs_scale=rhs_scale,
        acc=sum_,
        result=Value(sum_.type),
    )
    return t.add(op).result


@implements(language.matmul)
def matmul(t: Translator, x: object, y: object) -> object:
    """What `tk.matmul` and `@` mean."""
    lhs, rhs = as_tile(t, x), as_tile(t, y)
    a, b = tile_type(lhs), tile_type(rhs)
    if not 1 <= a.rank <= 3 or not 1 <= b.rank <= 3:
        raise t.wrong_type(f"@ takes tiles of rank 1 to 3, got {describe(lhs)} and {describe(rhs)}")
    if {a.number, b.number} == {int8, uint8}:
        raise t.wrong_type(
            f"@ multiplies in one type, got {a.number.name} and {b.number.name}, and a cast would change values; "
            "tk.mma(x, y, acc) takes them as they are, with acc such as tk.zeros((M, N), tk.int32)"
        )
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
    result = _mma(t, lhs, rhs, acc)
    # the product has the type of the factors, where that is one to compute in
    if not dtype.restricted and dtype.is_float:
        result = cast(t, result, dtype)
    shape = list(tile_type(result).shape)
    if a.rank == 1:
        del shape[-2]
    if b.rank == 1:
        del shape[-1]
    return reshape_value(t, result, tuple(shape))
