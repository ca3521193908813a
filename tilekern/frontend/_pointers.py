"""Integers that say where, and pointers that they move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import int32, int64
from ..ir import BroadcastOp, MaxOp, MinOp, NegOp, OffsetOp, ReshapeOp, Value
from ._promotion import as_tile, broadcast_shape, broadcast_to, cast
from ._values import describe, is_pointer, tile_type

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = [
    "broadcast_pointers",
    "move_pointer",
    "narrowed",
    "offset_pointers",
    "place_tile",
    "reshape_pointers",
]


def place_tile(t: Translator, value: object, what: str) -> Value:
    """An index or offset as a tile of int32, or of int64 where it does not fit.

    A uint64 of 2**63 and more comes out negative: it is no index of anything either way.
    """
    tile = as_tile(t, value, what)
    dtype = tile_type(tile).number
    if not dtype.is_integer:
        raise t.wrong_type(f"{what} is of whole numbers and integer tiles, got {describe(value)}")
    wide = dtype.bits == 64 or (dtype.bits == 32 and not dtype.is_signed)
    return cast(t, tile, int64 if wide else int32)


def narrowed(t: Translator, number: Value) -> Value:
    """An index as int32: one that int32 does not hold as its lowest or highest number, which is no index either."""
    dtype = tile_type(number).number
    if dtype is not int64:
        return cast(t, number, int32)
    for kind, limit in ((MinOp, int32.highest), (MaxOp, int32.lowest)):
        end = t.constant(limit, int64)
        number = t.add(kind(lhs=number, rhs=end, result=Value(number.type))).results[0]
    return cast(t, number, int32)


def move_pointer(t: Translator, symbol: str, a: object, b: object) -> Value:
    """`pointer + integers`, `integers + pointer` or `pointer - integers`."""
    if is_pointer(a) and not is_pointer(b) and symbol in ("+", "-"):
        pointers, elements = a, place_tile(t, b, "what moves a pointer")
        if symbol == "-":
            elements = cast(t, elements, int64)
            elements = t.add(NegOp(source=elements, result=Value(elements.type))).result
        return offset_pointers(t, pointers, elements)
    if is_pointer(b) and not is_pointer(a) and symbol == "+":
        return offset_pointers(t, b, place_tile(t, a, "what moves a pointer"))
    raise t.wrong_type(
        f"{describe(a)} {symbol} {describe(b)}: pointers take + and - of a number of elements, and nothing else"
    )


def offset_pointers(t: Translator, pointers: Value, elements: Value) -> Value:
    """Pointers moved by elements; the two broadcast together."""
    shape = broadcast_shape(t, tile_type(pointers).shape, tile_type(elements).shape)
    pointers = broadcast_pointers(t, pointers, shape)
    elements = broadcast_to(t, elements, shape)
    return t.add(OffsetOp(pointers=pointers, elements=elements, result=Value(pointers.type))).result


def reshape_pointers(t: Translator, pointers: Value, shape: tuple[int, ...]) -> Value:
    """Pointers in another shape of as many elements."""
    kind = tile_type(pointers)
    if kind.shape == shape:
        return pointers
    return t.add(ReshapeOp(source=pointers, result=Value(kind.with_shape(shape)))).result


def broadcast_pointers(t: Translator, pointers: Value, shape: tuple[int, ...]) -> Value:
    """Pointers repeated to `shape`."""
    kind = tile_type(pointers)
    if kind.shape == shape:
        return pointers
    if broadcast_shape(t, kind.shape, shape) != shape:
        raise t.wrong_value(f"shape {kind.shape} does not broadcast to {shape}")
    pointers = reshape_pointers(t, pointers, (1,) * (len(shape) - kind.rank) + kind.shape)
    if tile_type(pointers).shape == shape:
        return pointers
    return t.add(BroadcastOp(source=pointers, result=Value(kind.with_shape(shape)))).result
