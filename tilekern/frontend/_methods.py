"""Methods of parameters and of what is made of them: functions of their class in `language`."""

from __future__ import annotations

import types
from collections.abc import Callable

from .. import language
from ._mapped import MappedTilesValue, TileIndexValue
from ._values import OwnedTileValue, RawMemoryValue, TensorValue, TiledViewValue, is_pointer

__all__ = ["METHODS", "language_class", "method_of"]

_CLASSES: dict[type, type] = {
    TensorValue: language.Tensor,
    OwnedTileValue: language.OwnedTile,
    MappedTilesValue: language.MappedTiles,
    TileIndexValue: language.TileIndex,
    TiledViewValue: language.TiledView,
    RawMemoryValue: language.RawMemory,
}

METHODS: dict[tuple[type, str], Callable[..., object]] = {
    (cls, name): function
    for cls in (*_CLASSES.values(), language.Pointer)
    for name, function in vars(cls).items()
    if isinstance(function, types.FunctionType) and not name.startswith("_")
}
"""Methods by class of the language and name; those of tiles are functions of the language."""


def language_class(value: object) -> type | None:
    """What a parameter, view or pointer is in the language; None for other values."""
    return language.Pointer if is_pointer(value) else _CLASSES.get(type(value))


def method_of(value: object, name: str) -> Callable[..., object] | None:
    """The method of that name, if the value has one."""
    cls = language_class(value)
    return None if cls is None else METHODS.get((cls, name))
