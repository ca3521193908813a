"""Attributes: of tiles, parameters, and the Python objects a kernel can see."""

from __future__ import annotations

import enum
import sys
import types
from typing import TYPE_CHECKING

from .. import language
from ..language import Tile
from ._aggregates import is_named_tuple, is_record
from ._mapped import MappedTilesValue, TileIndexValue
from ._methods import METHODS, language_class, method_of
from ._records import record_attribute
from ._suggestions import instead
from ._values import (
    BoundMethod,
    InnerFunction,
    OwnedTileValue,
    PartialFunction,
    RangeValue,
    RawMemoryValue,
    StaticItems,
    TensorValue,
    TiledViewValue,
    describe,
    is_pointer,
    is_tile,
    pointee,
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
    if language_class(value) is not None:
        if method_of(value, name) is not None:
            return BoundMethod(name, value)
        facts = _facts(value)
        return facts[name] if name in facts else _missing(t, value, name, ", ".join(_known(value, facts)))
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
    raise t.wrong_type(
        f"{describe(value)} has no {name}"
        + (instead(name, _OF_TILES, "x.") or "; docs/language.md lists what tiles have")
    )


_OF_TILES = ("shape", "dtype", "ndim", "size", *TILE_METHODS)


def _facts(value: object) -> dict[str, object]:
    """Attributes of a parameter, view or pointer that are no methods."""
    if isinstance(value, TensorValue):
        return {"shape": value.shape, "strides": value.strides, "dtype": value.dtype, "ndim": value.rank}
    if isinstance(value, TileIndexValue):
        return {}
    if isinstance(value, MappedTilesValue):
        return {
            "shape": value.tile_shape,
            "map_shape": value.map_shape,
            "tensor_shape": value.tensor.shape,
            "dtype": value.tensor.dtype,
            "ndim": len(value.tile_shape),
        }
    if isinstance(value, OwnedTileValue):
        return {
            "shape": value.tile_shape,
            "tensor_shape": value.tensor.shape,
            "index": value.index,
            "dtype": value.tensor.dtype,
            "ndim": len(value.tile_shape),
        }
    if isinstance(value, TiledViewValue):
        view = value.type
        return {
            "tile_shape": view.tile_shape,
            "traversal_steps": view.starts_every,
            "dtype": value.tensor.dtype,
            "ndim": len(view.tile_shape),
        }
    if isinstance(value, RawMemoryValue):
        return {"dtype": value.tensor.dtype}
    assert is_pointer(value)
    kind = tile_type(value)
    return {"dtype": pointee(value), "shape": kind.shape, "ndim": kind.rank}


def _known(value: object, facts: dict[str, object]) -> list[str]:
    """Names of all attributes."""
    cls = language_class(value)
    return [*facts, *[name for owner, name in METHODS if owner is cls]]


def _missing(t: Translator, value: object, name: str, there: str) -> object:
    hint = f"; it has {there}" if there else ""
    if isinstance(value, TensorValue) and name in _OF_PARTITIONS:
        hint = (
            f"; use tk.{name}({value.name}, index, {'shape' if name == 'load' else 'tile'}), or declare {value.name} "
            "tk.Tile2D (or 1D, 3D) and give a partition"
        )
    elif isinstance(value, TensorValue | OwnedTileValue):
        hint = instead(name, there.split(", "), f"{value.name}.") or hint
    raise t.wrong_type(f"{describe(value)} has no {name}{hint}")


_OF_PARTITIONS = ("load", "store")


_GROWING = ("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse")


def _no_attribute(t: Translator, value: object, name: str, error: AttributeError) -> Exception:
    if isinstance(value, tuple) and name in _GROWING:
        return t.wrong_type(
            f"lists are tuples in a kernel and do not change, so they have no {name}; make a new one, as in "
            "items = (*items, item)"
        )
    if value is sys.modules[language.__name__.partition(".")[0]]:
        return t.wrong_type(f"tk has no {name}" + instead(name, language.__all__, "tk."))
    if isinstance(value, enum.EnumMeta):
        return t.wrong_type(f"{value.__name__} has no {name}; it has {', '.join(value.__members__)}")
    if isinstance(value, types.ModuleType):
        return t.wrong_type(f"module {value.__name__} has no {name}")
    return t.wrong_type(str(error))
