"""Attributes: of tiles, parameters, and the Python objects a kernel can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import language
from ..language import Tile
from ._aggregates import is_named_tuple, is_record
from ._records import record_attribute
from ._values import (
    BoundMethod,
    InnerFunction,
    OwnedTileValue,
    PartialFunction,
    RangeValue,
    StaticItems,
    TensorValue,
    describe,
    is_tile,
    tile_type,
)

if TYPE_CHECKING:
    from ..ir import Value
    from ._translator import Translator

__all__ = ["attribute"]

TILE_METHODS = tuple(name for name in vars(Tile) if not name.startswith("_") and hasattr(language, name))
"""Methods of tiles: language functions of the same name, the tile being the first argument."""


def attribute(t: Translator, value: object, name: str) -> object:
    """`value.name`."""
    if is_tile(value):
        return _of_tile(t, value, name)
    if isinstance(value, TensorValue):
        found = {
            "shape": value.shape,
            "strides": value.strides,
            "dtype": value.dtype,
            "ndim": value.rank,
        }.get(name)
        return found if found is not None else _missing(t, value, name, "shape, strides, dtype, ndim")
    if isinstance(value, OwnedTileValue):
        return _of_owned_tile(t, value, name)
    if isinstance(value, RangeValue | StaticItems | InnerFunction | PartialFunction | BoundMethod):
        return _missing(t, value, name, "")
    try:
        if is_record(value) or is_named_tuple(value):
            return record_attribute(t, value, name)
        return t.captures.from_attribute(value, name)
    except AttributeError as error:
        raise _no_attribute(t, value, name, error) from None


def _of_tile(t: Translator, value: Value, name: str) -> object:
    kind = tile_type(value)
    if name in TILE_METHODS:
        return BoundMethod(name, value)
    if name == "shape":
        return kind.shape
    if name == "dtype":
        return kind.dtype
    if name == "ndim":
        return kind.rank
    if name == "size":
        return kind.size
    return _missing(t, value, name, f"shape, dtype, ndim, size, {', '.join(TILE_METHODS)}")


def _of_owned_tile(t: Translator, value: OwnedTileValue, name: str) -> object:
    if name in ("load", "store"):
        return BoundMethod(name, value)
    if name == "shape":
        return value.tile_shape
    if name == "tensor_shape":
        return value.tensor.shape
    if name == "index":
        return value.index
    if name == "dtype":
        return value.tensor.dtype
    if name == "ndim":
        return len(value.tile_shape)
    return _missing(t, value, name, "load, store, shape, tensor_shape, index, dtype, ndim")


def _missing(t: Translator, value: object, name: str, there: str) -> object:
    raise t.wrong_type(f"{describe(value)} has no {name}{f'; it has {there}' if there else ''}")


_GROWING = ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse")


def _no_attribute(t: Translator, value: object, name: str, error: AttributeError) -> Exception:
    if isinstance(value, tuple) and name in _GROWING:
        return t.wrong_type(
            f"lists are tuples in a kernel and do not change, so they have no {name}; make a new one, as in "
            "items = (*items, item)"
        )
    return t.wrong_type(str(error))
