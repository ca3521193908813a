"""Bringing together what a variable is on different paths: after a branch, and around a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import DType
from ..ir import TileType, Value
from ._promotion import as_tile, broadcast_to, cast, common_dtype, default_dtype, dtype_for
from ._values import is_number, is_tile, tile_type

if TYPE_CHECKING:
    from ._translator import Translator

__all__ = ["coerce", "fits", "merged_type", "rebuild", "same", "same_structure"]


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


def same_structure(a: object, b: object) -> bool:
    """True when both are leaves, or tuples of the same structure."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_structure, a, b))
    return isinstance(a, tuple) == isinstance(b, tuple)


def rebuild(value: object, parts: Iterator[object]) -> object:
    """`value` with its leaves replaced, in order, by `parts`."""
    if isinstance(value, tuple):
        return tuple([rebuild(part, parts) for part in value])
    return next(parts)


def merged_type(t: Translator, a: object, b: object) -> TileType | None:
    """The tile type that holds both of two leaves; None when there is none.

    Numbers take the type of a tile on the other path. Two tiles must have one type already.
    """
    if is_tile(a) and is_tile(b):
        return tile_type(a) if a.type == b.type else None
    if is_number(a) and is_number(b):
        return TileType(common_dtype(t, default_dtype(a), default_dtype(b)))
    if is_tile(b):
        a, b = b, a
    if not is_tile(a) or not is_number(b):
        return None
    kind = tile_type(a)
    dtype = kind.number
    return kind if not dtype.restricted and dtype_for(b, dtype) is dtype else None


def fits(value: object, kind: TileType) -> bool:
    """True when `coerce` can make `value` a tile of `kind` without changing what it means."""
    if is_tile(value):
        return value.type == kind
    return is_number(value) and not kind.number.restricted and dtype_for(value, kind.number) is kind.number


def coerce(t: Translator, value: object, kind: TileType) -> Value:
    """`value` as a tile of `kind`."""
    tile = as_tile(t, value, dtype=kind.number)
    return broadcast_to(t, cast(t, tile, kind.number), kind.shape)
