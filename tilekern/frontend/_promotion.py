"""Which type and shape operands are brought to before they meet.

Types. A Python number, in the source or as an argument, has no type of its own ("loose"): it takes that of the
tile it meets, or, a float beside integers, float32. Loose numbers among themselves are computed as Python
does, in float64 or wide integers. Two tiles meet in the wider type of the same kind, or in the float type of an
integer and a float. Nothing is converted silently where that could surprise: signed beside unsigned,
float16 beside bfloat16, and fp8 or tf32 beside anything need a cast.

Shapes. As in NumPy: axes are lined up from the last one, missing ones and those of size 1 are repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._terms import Argument, Term, encoded
from ..dtypes import DType, bool_, dtype_of, float32, float64, int32, int64, uint64
from ..ir import BroadcastOp, CastOp, CompareOp, ReshapeOp, TileType, Value, cast_roundings
from ._checks import Fits, Requires
from ._values import Loose, OwnedTileValue, TensorValue, describe, is_loose, is_tile, tile_type

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = [
    "as_float",
    "as_tile",
    "broadcast_shape",
    "broadcast_to",
    "cast",
    "common_dtype",
    "dtype_beside",
    "exact",
    "loose_dtype",
    "meet",
    "promote",
    "reshape",
    "typed",
]


def loose_dtype(value: bool | int | float | Loose) -> DType:
    """The type a loose number is held in at run time: wide enough to lose nothing."""
    if isinstance(value, Loose):
        return tile_type(value).number
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return next((t for t in (int32, int64, uint64) if t.holds(value)), int64)
    return float64


def default_dtype(value: bool | int | float | Loose) -> DType:
    """The type of a loose number where a tile is needed and none is there to take the type from."""
    dtype = loose_dtype(value)
    return float32 if dtype is float64 else dtype


def dtype_beside(value: bool | int | float | Loose, other: DType) -> DType:
    """The type in which a loose number and a tile of `other` meet."""
    own = loose_dtype(value)
    if own.is_float:
        return other if other.is_float else float32
    if own is bool_:
        return other
    return own if other is bool_ else other


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
    """`value` as a tile: tiles as they are, loose numbers as scalars of `dtype` or their default type."""
    if is_loose(value):
        wanted = default_dtype(value) if dtype is None else dtype
        exact(t, value)
        return cast(t, value, wanted) if isinstance(value, Loose) else t.constant(value, wanted)
    if is_tile(value):
        return value
    if isinstance(value, np.generic):
        try:
            own = dtype_of(value.dtype)
        except TypeError as error:
            raise t.wrong_type(str(error)) from None
        return t.constant(value.item() if not own.is_float else float(value), own)
    hint = ""
    if isinstance(value, TensorValue):
        hint = f"; load a tile of it with tk.load({value.name}, index, shape)"
    elif isinstance(value, OwnedTileValue):
        hint = f"; load its tile with {value.name}.load()"
    raise t.wrong_type(f"{what} is a tile or a number, got {describe(value)}{hint}")


def promote(t: Translator, *values: object, keep_loose: bool = False) -> list[Value]:
    """`values` as tiles of one element type and shape.

    With `keep_loose`, loose numbers among themselves meet in a type that loses nothing; without, in their
    default type.
    """
    operands = [v if is_loose(v) else as_tile(t, v) for v in values]
    dtype: DType | None = None
    for value in operands:
        if isinstance(value, Value) and not isinstance(value, Loose):
            own = tile_type(value).number
            dtype = own if dtype is None else common_dtype(t, dtype, own)
    if dtype is not None:
        for value in operands:
            if is_loose(value):
                if dtype.restricted:
                    raise t.wrong_type(
                        f"{dtype.name} is for storage and matrix products; convert first, as in "
                        "x.astype(tk.float32)"
                    )
                dtype = dtype_beside(value, dtype)
    else:
        for value in operands:
            assert is_loose(value)
            own = loose_dtype(value) if keep_loose else default_dtype(value)
            dtype = own if dtype is None else _common_loose(dtype, own)
    assert dtype is not None
    shape: tuple[int, ...] = ()
    for value in operands:
        if isinstance(value, Value):
            shape = broadcast_shape(t, shape, tile_type(value).shape)
    return [_promoted(t, v, dtype, shape, keep_loose) for v in operands]


def _promoted(
    t: Translator, value: Value | float, dtype: DType, shape: tuple[int, ...], keep_loose: bool
) -> Value:
    if not isinstance(value, Value):
        return t.constant(value, dtype, shape)
    if keep_loose and tile_type(value).number is dtype:
        return value  # what it was made of is looked at where it meets another type, or a tile
    return broadcast_to(t, meet(t, value, dtype), shape)


def _common_loose(a: DType, b: DType) -> DType:
    """Where loose numbers meet; a huge unsigned one and a signed one in int64, as they wrap."""
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if bool_ in (a, b):
        return b if a is bool_ else a
    return int64 if a is not b else a


def typed(t: Translator, value: Value) -> Value:
    """A loose number that was cast to the type it is held in, as a scalar of that type."""
    if not isinstance(value, Loose):
        return value
    return t.add(ReshapeOp(source=value, result=Value(value.type))).result


def meet(t: Translator, value: Value, dtype: DType) -> Value:
    """`value` as `dtype`; that a loose integer fits a narrower type is checked before the launch if it can be."""
    own = tile_type(value).number
    is_narrower = (
        isinstance(value, Loose)
        and dtype.is_integer
        and own.is_integer
        and not (dtype.lowest <= own.lowest and own.highest <= dtype.highest)
    )
    if is_narrower and value in t.entry:
        t.checks.append(Fits(t.entry[value], value.name, dtype.name, dtype.lowest, dtype.highest, t.location))
    elif value in t.terms and value not in t.entry and t.builder.block is t.body:
        # Elsewhere a condition may see to it that it fits.
        t.checks.append(_fits(t, t.terms[value], own, dtype))
    return cast(t, value, dtype)


def exact(t: Translator, *values: object) -> None:
    """Loose integers among `values` must not have wrapped: what is made of them is more than a sum or product."""
    for value in values:
        if isinstance(value, Loose):
            meet(t, value, tile_type(value).number)


def _fits(t: Translator, term: Term, own: DType, dtype: DType) -> Requires:
    """That what arithmetic made of arguments, held in `own`, neither wraps nor is cut where it meets a tile."""
    names, low, high = [f"{own.name}, in which it is computed"], own.lowest, own.highest
    if dtype.is_integer and not (dtype.lowest <= low and high <= dtype.highest):
        if low < dtype.lowest and dtype.highest <= high:
            names.clear()
        names.append(f"{dtype.name}, the type of the tile it meets")
        low, high = max(low, dtype.lowest), min(high, dtype.highest)
    elif dtype is own or not dtype.is_integer:
        names.append(f"make the arguments tiles, as in tk.{own.name}(n), to let it wrap")
    flats = {a.position for a in term.atoms() if isinstance(a, Argument)}
    return Requires(
        encoded((term - low, -term + high)),
        (),
        False,
        f"{term} is {{0}}, which does not fit {'; '.join(names)}",
        encoded((term,)),
        tuple(sorted(flats)),
        t.location,
    )


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
    rounding = cast_roundings(source, dtype)[0]
    return t.add(CastOp(source=value, rounding=rounding, result=Value(kind.with_dtype(dtype)))).result


def as_float(t: Translator, value: object, what: str) -> Value:
    """`value` as a tile of floats: integers, bools and loose numbers as float32."""
    tile = as_tile(t, value, what, float32 if is_loose(value) else None)
    dtype = tile_type(tile).number
    if dtype.restricted:
        raise t.wrong_type(f"{what} is {dtype.name}; convert first, as in x.astype(tk.float32)")
    return tile if dtype in (float64, float32) or dtype.is_float else cast(t, tile, float32)
