"""Bringing together what a variable is on different paths: after a branch, and around a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..dtypes import DType, bool_
from ..ir import TileType, Value
from ._promotion import as_tile, broadcast_to, cast, dtype_beside, loose_dtype
from ._values import Loose, is_loose, is_pointer, is_tile, tile_type

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["Kind", "coerce", "fits", "kind_of", "merged_kind", "same"]


class Kind(NamedTuple):
    """What a variable is whose value is known only at run time: a tile of a type, or a loose number."""

    type: TileType
    loose: bool

    def value(self) -> Value:
        """A new value of this kind."""
        return Loose(self.type) if self.loose else Value(self.type)


def kind_of(value: Value) -> Kind:
    """The kind of a tile, pointer or loose number."""
    return Kind(tile_type(value), isinstance(value, Loose))


def same(a: object, b: object) -> bool:
    """True when two leaves are the same compile-time object or the same IR value."""
    if a is b:
        return True
    if is_tile(a) or is_tile(b) or type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex() if isinstance(b, float) else False
    if isinstance(a, int | str | bool | DType | np.generic):
        return bool(a == b)
    return False


def merged_kind(a: object, b: object) -> Kind | None:
    """The kind that holds both of two leaves; None when there is none.

    Loose numbers stay loose among themselves and take the type of a tile on the other path. Two tiles must
    have one type already.
    """
    if is_pointer(a) and is_pointer(b):
        return kind_of(a) if a.type == b.type else None
    if is_loose(a) and is_loose(b):
        return Kind(TileType(_loose_meet(loose_dtype(a), loose_dtype(b))), True)
    if is_loose(a):
        a, b = b, a
    if not is_tile(a):
        return None
    kind = kind_of(a)
    if is_loose(b):
        return kind if _takes(kind, b) else None
    return kind if is_tile(b) and b.type == a.type else None


def _loose_meet(a: DType, b: DType) -> DType:
    """The type that holds loose numbers held in two types."""
    if a is b:
        return a
    if a.is_float or b.is_float:
        return a if a.is_float else b
    return b if a is bool_ or (b.bits > a.bits and b is not bool_) else a


def _takes(kind: Kind, number: bool | int | float | Loose) -> bool:
    """True when a tile's type is the one a loose number takes beside it."""
    dtype = kind.type.number
    return not dtype.restricted and dtype_beside(number, dtype) is dtype


def fits(value: object, kind: Kind) -> bool:
    """True when `coerce` can make `value` one of `kind` without changing what it means."""
    if is_pointer(value):
        return value.type == kind.type
    if kind.loose:
        return is_loose(value) and _loose_meet(loose_dtype(value), kind.type.number) is kind.type.number
    if is_loose(value):
        return _takes(kind, value)
    return is_tile(value) and value.type == kind.type


def coerce(t: Translator, value: object, kind: Kind) -> Value:
    """`value` as one of `kind`."""
    if is_pointer(value):
        return value
    dtype = kind.type.number
    tile = as_tile(t, value, dtype=dtype if is_loose(value) else None)
    return broadcast_to(t, cast(t, tile, dtype), kind.type.shape)
