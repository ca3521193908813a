"""Creating tiles, and moving and converting their elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ... import language
from ...dtypes import DType, bool_, float8_e8m0fnu, float32, float64, int32, tfloat32, uint8
from ...ir import (
    BitcastOp,
    CastOp,
    CatOp,
    ConstantOp,
    ExtractOp,
    InsertOp,
    IotaOp,
    PackOp,
    PermuteOp,
    TileType,
    UnpackOp,
    Value,
    cast_roundings,
    tile_shape_problem,
)
from .._operators import binary
from .._pointers import narrowed, place_tile
from .._promotion import as_tile, cast, meet, promote, typed
from .._promotion import broadcast_to as broadcast_value
from .._promotion import reshape as reshape_value
from .._values import Loose, describe, is_loose, is_number, is_scalar, is_tile, tile_type
from ._options import rounding_option
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__ = ["index_tile"]


@implements(language.full)
def full(t: Translator, shape: object, fill_value: object, dtype: object) -> object:
    sides, element = t.static_shape(shape), t.static_dtype(dtype)
    if is_number(fill_value):
        return t.constant(fill_value, element, sides)
    value = fill_value if isinstance(fill_value, Loose) else as_tile(t, fill_value, "the fill value")
    if not is_scalar(value):
        raise t.wrong_type(f"the fill value is a number or scalar, got {describe(value)}")
    return broadcast_value(t, meet(t, value, element), sides)


@implements(language.zeros)
def zeros(t: Translator, shape: object, dtype: object) -> object:
    return t.constant(0, t.static_dtype(dtype), t.static_shape(shape))


@implements(language.ones)
def ones(t: Translator, shape: object, dtype: object) -> object:
    return t.constant(1, t.static_dtype(dtype), t.static_shape(shape))


@implements(language.arange)
def arange(t: Translator, size: object, start: object, step: object, dtype: object) -> object:
    element = t.static_dtype(dtype)
    shape = t.static_shape(t.static_int(size, "size"))
    counter = element if element.is_integer and element.holds(shape[0] - 1) else int32
    value: object = t.add(IotaOp(result=Value(TileType(counter, shape)))).result
    assert is_tile(value)
    value = cast(t, value, element)
    if not (is_number(step) and step == 1):
        value = binary(t, "*", value, _element(t, step, element))
    if not (is_number(start) and start == 0):
        value = binary(t, "+", value, _element(t, start, element))
    return value


def _element(t: Translator, value: object, dtype: DType) -> Value:
    return meet(t, value, dtype) if isinstance(value, Loose) else cast(t, as_tile(t, value), dtype)


@implements(language.reshape)
def reshape(t: Translator, x: object, shape: object) -> object:
    value = as_tile(t, x)
    size = tile_type(value).size
    sides = list(t.static_ints(shape, "shape"))
    if sides.count(-1) > 1:
        raise t.wrong_value(f"one side at most is -1, got shape {tuple(sides)}")
    if -1 in sides:
        known = -math.prod(sides)
        sides[sides.index(-1)] = size // known if known and size % known == 0 else 0
    if math.prod(sides) != size or min(sides, default=1) < 1:
        raise t.wrong_value(f"{size} elements of {describe(value)} do not fill shape {shape}")
    return reshape_value(t, value, t.static_shape(tuple(sides)))


@implements(language.broadcast_to)
def broadcast_to(t: Translator, x: object, shape: object) -> object:
    return broadcast_value(t, as_tile(t, x), t.static_shape(shape))


@implements(language.expand_dims)
def expand_dims(t: Translator, x: object, axis: object) -> object:
    value = as_tile(t, x)
    axes = t.static_ints(axis, "axis")
    rank = tile_type(value).rank + len(axes)
    positions = {t.axis(a, rank) for a in axes}
    if len(positions) != len(axes):
        raise t.wrong_value(f"axis names a position twice: {axis}")
    rest = iter(tile_type(value).shape)
    return reshape_value(t, value, tuple([1 if i in positions else next(rest) for i in range(rank)]))


@implements(language.permute)
def permute(t: Translator, x: object, axes: object) -> object:
    value = as_tile(t, x)
    kind = tile_type(value)
    order = tuple([t.axis(a, kind.rank) for a in t.static_ints(axes, "axes")])
    if sorted(order) != list(range(kind.rank)):
        raise t.wrong_value(f"axes name every one of the {kind.rank} axes once, got {axes}")
    if order == tuple(range(kind.rank)):
        return value
    result = Value(kind.with_shape(tuple([kind.shape[a] for a in order])))
    return t.add(PermuteOp(source=value, order=order, result=result)).result


@implements(language.transpose)
def transpose(t: Translator, x: object, axis0: object, axis1: object) -> object:
    value = as_tile(t, x)
    rank = tile_type(value).rank
    if axis0 is None and axis1 is None:
        if rank != 2:
            raise t.wrong_value(f"a tile of rank {rank} needs the two axes to swap")
        axis0, axis1 = 0, 1
    a, b = t.axis(axis0, rank, "axis0"), t.axis(axis1, rank, "axis1")
    order = list(range(rank))
    order[a], order[b] = order[b], order[a]
    return permute(t, value, tuple(order))


@implements(language.cat)
def cat(t: Translator, tiles: object, axis: object) -> object:
    if not isinstance(tiles, tuple) or not tiles:
        raise t.wrong_type(f"cat takes a tuple of tiles, got {describe(tiles)}")
    values = [as_tile(t, tile) for tile in tiles]
    kinds = {v.type for v in values}
    if len(kinds) != 1:
        raise t.wrong_type(f"cat takes tiles of one type and shape, got {', '.join(map(describe, values))}")
    if len(values) & (len(values) - 1):
        raise t.wrong_value(f"cat takes 2, 4, 8, ... tiles, since sides are powers of two; got {len(values)}")
    return _joined(t, values, t.axis(axis, tile_type(values[0]).rank))


def _joined(t: Translator, values: list[Value], axis: int) -> Value:
    while len(values) > 1:
        values = [_pair(t, a, b, axis) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _pair(t: Translator, lhs: Value, rhs: Value, axis: int) -> Value:
    kind = tile_type(lhs)
    shape = tuple([2 * side if i == axis else side for i, side in enumerate(kind.shape)])
    return t.add(CatOp(lhs=lhs, rhs=rhs, axis=axis, result=Value(kind.with_shape(shape)))).result


@implements(language.extract)
def extract(t: Translator, x: object, index: object, shape: object) -> object:
    value = as_tile(t, x)
    kind = tile_type(value)
    sides = t.static_shape(shape)
    numbers = _part_index(t, value, index, sides)
    op = ExtractOp(source=value, index=numbers, result=Value(kind.with_shape(sides)))
    return t.add(op).result


@implements(language.insert)
def insert(t: Translator, x: object, index: object, value: object) -> object:
    target, source = as_tile(t, x), as_tile(t, value)
    kind = tile_type(target)
    if tile_type(source).number is not kind.number:
        raise t.wrong_type(
            f"insert puts a tile into one of its own element type, got {describe(source)} for {describe(target)}"
        )
    numbers = _part_index(t, target, index, tile_type(source).shape)
    return t.add(InsertOp(source=source, target=target, index=numbers, result=Value(kind))).result


def _part_index(t: Translator, value: Value, index: object, sides: tuple[int, ...]) -> tuple[Value, ...]:
    """Which of the parts of shape `sides` of a tile, as int32 scalars."""
    kind = tile_type(value)
    indices = index if isinstance(index, tuple) else (index,)
    if len(sides) != kind.rank or len(indices) != kind.rank:
        raise t.wrong_value(
            f"index and part have one number per axis of {describe(value)}, got {len(indices)} and {len(sides)}"
        )
    numbers: list[Value] = []
    for axis, (part, whole, side) in enumerate(zip(indices, kind.shape, sides, strict=True)):
        if whole % side:
            raise t.wrong_value(f"side {side} does not divide {whole}, the tile's side along axis {axis}")
        if isinstance(part, int) and not 0 <= part < whole // side:
            raise t.wrong_value(f"index {part} along axis {axis}, which has {whole // side} parts")
        number = place_tile(t, part, "an index")
        if not is_scalar(number):
            raise t.wrong_type(f"an index is of whole numbers and integer scalars, got {describe(part)}")
        numbers.append(narrowed(t, number))
    return tuple(numbers)


@implements(language.astile)
def astile(t: Translator, value: object, dtype: object) -> object:
    element = None if dtype is None else t.static_dtype(dtype)
    shape, parts = _nested(t, value)
    if problem := tile_shape_problem(shape):
        raise t.wrong_value(problem)
    if element is None:
        element = tile_type(promote(t, *parts)[0]).number
    if all(is_number(part) for part in parts):
        numbers = tuple([t.held(part, element) for part in parts if is_number(part)])
        result = Value(TileType(element, shape))
        return t.add(ConstantOp(value=numbers if shape else numbers[0], result=result)).result
    scalars = []
    for part in parts:
        scalar = part
        if not isinstance(part, Loose):
            scalar = as_tile(t, part, "a number of astile", element if is_loose(part) else None)
        if not is_scalar(scalar):
            raise t.wrong_type(f"astile takes numbers and scalars, got {describe(part)}")
        scalars.append(reshape_value(t, meet(t, scalar, element), (1,)))
    return reshape_value(t, _joined(t, scalars, 0), shape)


def _nested(t: Translator, value: object) -> tuple[tuple[int, ...], list[object]]:
    """The shape of nested tuples, and what they hold in row-major order."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, tuple | list):
        return (), [value]
    inner = [_nested(t, part) for part in value]
    shapes = {shape for shape, _ in inner}
    if len(shapes) != 1:
        raise t.wrong_value(
            f"astile takes nested tuples of equal lengths, got parts of shapes {sorted(shapes)}"
            if shapes
            else "astile takes no empty tuple"
        )
    return (len(inner), *shapes.pop()), [part for _, parts in inner for part in parts]


@implements(language.pack_to_bytes)
def pack_to_bytes(t: Translator, x: object) -> object:
    value = as_tile(t, x)
    kind = tile_type(value)
    _check_bytes(t, kind.number, "pack_to_bytes")
    size = kind.size * kind.number.bits // 8
    if not size:
        raise t.wrong_value(f"{describe(value)} does not fill a byte")
    row = reshape_value(t, value, (kind.size,))
    result = Value(TileType(uint8, (size,)))
    if kind.number is uint8:
        return row
    op = BitcastOp if kind.number.bits == 8 else PackOp
    return t.add(op(source=row, result=result)).result


@implements(language.unpack_from_bytes)
def unpack_from_bytes(t: Translator, x: object, dtype: object) -> object:
    value, element = as_tile(t, x), t.static_dtype(dtype)
    kind = tile_type(value)
    if kind.number is not uint8:
        raise t.wrong_type(f"unpack_from_bytes takes a tile of uint8, got {describe(value)}")
    _check_bytes(t, element, "unpack_from_bytes")
    count, rest = divmod(kind.size * 8, element.bits)
    if rest or not count:
        raise t.wrong_value(f"{kind.size} bytes are no whole number of {element.name}")
    row = reshape_value(t, value, (kind.size,))
    if element is uint8:
        return row
    result = Value(TileType(element, (count,)))
    op = BitcastOp if element.bits == 8 else UnpackOp
    return t.add(op(source=row, result=result)).result


def _check_bytes(t: Translator, dtype: DType, name: str) -> None:
    if dtype in (bool_, tfloat32):
        raise t.wrong_type(
            f"{name}: {dtype.name} has no bytes of its own; convert it, as in x.astype(tk.uint8)"
        )


@implements(language.item)
def item(t: Translator, x: object) -> object:
    value = as_tile(t, x)
    if tile_type(value).size != 1:
        raise t.wrong_value(f"item takes a tile of one element, got {describe(value)}")
    return reshape_value(t, value, ())


@implements(language.astype)
def astype(t: Translator, x: object, dtype: object, rounding_mode: object) -> object:
    element = t.static_dtype(dtype)
    if is_number(x) and element.is_integer and isinstance(x, float):
        return _truncate(t, x, element)
    if is_number(x) and rounding_mode is None and element is not float8_e8m0fnu:
        return t.constant(x, element)
    # a number that is to be rounded in a certain way is held exactly first
    exact = float64 if isinstance(x, float) else None if is_number(x) else element
    value = as_tile(t, x, dtype=exact if is_loose(x) else None)
    return typed(t, convert(t, value, element, rounding_mode))


def convert(t: Translator, value: Value, element: DType, rounding_mode: object) -> Value:
    """`value` as another type, rounded as told."""
    if rounding_mode is None:
        return cast(t, value, element)
    source = tile_type(value).number
    what = f"conversion of {source.name} to {element.name}"
    if rounding_mode is language.RoundingMode.RZI:
        if not source.is_float or not element.is_integer:
            raise t.wrong_value(f"RZI is for floats that become integers, not for the {what}")
        return cast(t, value, element)
    if source is element:
        return value
    rounding = rounding_option(t, rounding_mode, what, float32, cast_roundings(source, element))
    if rounding == "nearest_even":
        return cast(t, value, element)
    result = Value(tile_type(value).with_dtype(element))
    return t.add(CastOp(source=value, rounding=rounding, result=result)).result


def _truncate(t: Translator, number: float, dtype: DType) -> Value:
    if not math.isfinite(number):
        raise t.wrong_value(f"{number} has no whole part")
    return t.constant(int(number), dtype)


@implements(language.bitcast)
def bitcast(t: Translator, x: object, dtype: object) -> object:
    value, element = as_tile(t, x), t.static_dtype(dtype)
    kind = tile_type(value)
    if kind.number is element:
        return value
    if kind.number.bits != element.bits:
        raise t.wrong_type(
            f"bitcast keeps the width: {kind.number.name} has {kind.number.bits} bits, {element.name} "
            f"{element.bits}"
        )
    return t.add(BitcastOp(source=value, result=Value(kind.with_dtype(element)))).result


def index_tile(t: Translator, value: Value, index: object) -> Value:
    """`value[index]`: new axes where the index is None."""
    parts = index if isinstance(index, tuple) else (index,)
    shape = list(tile_type(value).shape)
    result: list[int] = []
    kept = [p for p in parts if p is not None and p is not Ellipsis]
    if any(p != slice(None, None, None) for p in kept) or len(kept) > len(shape) or parts.count(Ellipsis) > 1:
        raise t.wrong_type(
            "a tile's index holds only :, None and ...; tk.extract takes parts of a tile, tk.where chooses "
            "elements"
        )
    if Ellipsis not in parts:
        parts = (*parts, Ellipsis)
    for part in parts:
        if part is None:
            result.append(1)
        elif part is Ellipsis:
            after = len([p for p in parts[parts.index(Ellipsis) + 1 :] if p is not None])
            count = len(shape) - after
            result.extend(shape[:count])
            del shape[:count]
        else:
            result.append(shape.pop(0))
    return reshape_value(t, value, tuple(result))
