"""Which type and shape operands are brought to before they meet.

Types. A Python number has no type of its own ("loose"): it takes that of the tile it meets, or, a float
beside integers, float32. Two tiles meet in the wider type of the same kind, or in the float type of an
integer and a float. Nothing is converted silently where that could surprise: signed beside unsigned,
float16 beside bfloat16, and fp8 or tf32 beside anything need a cast.

Shapes. As in NumPy: axes are lined up from the last one, missing ones and those of size 1 are repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import DType, bool_, dtype_of, float32, float64, int32, int64, uint64
from ..ir import BroadcastOp, CastOp, CompareOp, ReshapeOp, TileType, Value
from ._values import describe, is_number, is_tile, tile_type

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = [
    "as_float",
    "as_tile",
    "broadcast_shape",
    "broadcast_to",
    "cast",
    "common_dtype",
    "default_dtype",
    "promote",
    "reshape",
]


def default_dtype(number: bool | int | float) -> DType:
    """The type of a Python number that meets nothing to take one from."""
    if isinstance(number, bool):
        return bool_
    if isinstance(number, int):
        return next((t for t in (int32, int64, uint64) if t.holds(number)), int64)
    return float32


def dtype_for(number: bool | int | float, other: DType) -> DType:
    """The type a Python number takes beside a tile of `other`; the two may still have to meet."""
    if isinstance(number, float):
        return other if other.is_float else float32
    if isinstance(number, bool):
        return bool_ if other is bool_ else other
    return default_dtype(number) if other is bool_ else other


def common_dtype(t: Translator, a: DType, b: DType) -> DType:
    """The type in which tiles of `a` and `b` meet."""
    if a is b:
        return a
    for dtype in (a, b):
        if dtype.restricted:
            raise t.wrong_type(
                f"{dtype.name} meets no other type without a cast; convert first, as in x.astype(tk.float32)"
            )
    if bool_ in (a, b):
        return b if a is bool_ else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.kind != b.kind:
        raise t.wrong_type(
            f"{a.name} and {b.name} do not mix: one has a sign, the other has none; cast one of them, as in "
            f"x.astype(tk.{a.name})"
        )
    if a.bits == b.bits:
        raise t.wrong_type(f"{a.name} and {b.name} do not mix; cast both, as in x.astype(tk.float32)")
    return a if a.bits > b.bits else b


def as_tile(t: Translator, value: object, what: str = "an operand", dtype: DType | None = None) -> Value:
    """`value` as a tile: tiles as they are, numbers as scalars of `dtype` or their default type."""
    if is_tile(value):
        return value
    if is_number(value):
        return t.constant(value, default_dtype(value) if dtype is None else dtype)
    if isinstance(value, np.generic):
        try:
            own = dtype_of(value.dtype)
        except TypeError as error:
            raise t.wrong_type(str(error)) from None
        return t.constant(value.item() if not own.is_float else float(value), own)
    raise t.wrong_type(f"{what} is a tile or a number, got {describe(value)}")


def promote(t: Translator, *values: object) -> list[Value]:
    """`values` as tiles of one element type and shape."""
    typed = [v if is_number(v) else as_tile(t, v) for v in values]
    dtypes = [tile_type(v).number for v in typed if isinstance(v, Value)]
    if dtypes:
        dtype = dtypes[0]
        for other in dtypes[1:]:
            dtype = common_dtype(t, dtype, other)
        for value in typed:
            if not isinstance(value, Value):
                dtype = _meet_number(t, value, dtype)
    else:
        dtype = default_dtype(values[0])  # type: ignore[arg-type]  # all are numbers
        for number in values[1:]:
            dtype = common_dtype(t, dtype, default_dtype(number))  # type: ignore[arg-type]
    shape: tuple[int, ...] = ()
    for value in typed:
        if isinstance(value, Value):
            shape = broadcast_shape(t, shape, tile_type(value).shape)
    return [
        broadcast_to(t, cast(t, v, dtype), shape) if isinstance(v, Value) else t.constant(v, dtype, shape)
        for v in typed
    ]


def _meet_number(t: Translator, number: bool | int | float, dtype: DType) -> DType:
    if dtype.restricted:
        raise t.wrong_type(
            f"{dtype.name} is for storage and matrix products; convert first, as in x.astype(tk.float32)"
        )
    return dtype_for(number, dtype)


def broadcast_shape(t: Translator, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which tiles of shapes `a` and `b` meet."""
    if a == b:
        return a
    rank = max(len(a), len(b))
    long_a, long_b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    shape = []
    for x, y in zip(long_a, long_b, strict=True):
        if x != y and 1 not in (x, y):
            raise t.wrong_value(f"shapes {a} and {b} do not broadcast together")
        shape.append(max(x, y))
    return tuple(shape)


def reshape(t: Translator, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` in another shape of as many elements."""
    kind = tile_type(value)
    if kind.shape == shape:
        return value
    return t.add(ReshapeOp(source=value, result=Value(kind.with_shape(shape)))).result


def broadcast_to(t: Translator, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` repeated to `shape`."""
    kind = tile_type(value)
    if kind.shape == shape:
        return value
    if broadcast_shape(t, kind.shape, shape) != shape:
        raise t.wrong_value(f"shape {kind.shape} does not broadcast to {shape}")
    value = reshape(t, value, (1,) * (len(shape) - kind.rank) + kind.shape)
    if tile_type(value).shape == shape:
        return value
    return t.add(BroadcastOp(source=value, result=Value(kind.with_shape(shape)))).result


def cast(t: Translator, value: Value, dtype: DType) -> Value:
    """`value` as `dtype`. To bool means "is not 0"; between integers and fp8 or tf32 it goes by way of float32."""
    kind = tile_type(value)
    source = kind.number
    if source is dtype:
        return value
    if (source.restricted and not dtype.is_float) or (dtype.restricted and not source.is_float):
        return cast(t, cast(t, value, float32), dtype)
    if dtype is bool_:
        zero = t.constant(0, source, kind.shape)
        return t.add(
            CompareOp(lhs=value, rhs=zero, predicate="ne", result=Value(TileType(bool_, kind.shape)))
        ).result
    return t.add(CastOp(source=value, result=Value(kind.with_dtype(dtype)))).result


def as_float(t: Translator, value: object, what: str) -> Value:
    """`value` as a tile of floats: integers, bools and loose numbers as float32."""
    tile = as_tile(t, value, what, float32 if is_number(value) else None)
    dtype = tile_type(tile).number
    if dtype.restricted:
        raise t.wrong_type(f"{what} is {dtype.name}; convert first, as in x.astype(tk.float32)")
    return tile if dtype in (float64, float32) or dtype.is_float else cast(t, tile, float32)
