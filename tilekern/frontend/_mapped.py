"""Mapped partitions and their indices, as kernels see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ir import Value
from ._values import OwnedTileValue, RangeValue

__all__ = ["MappedTilesValue", "TileIndexValue", "WalkValue"]


@dataclass(eq=False)
class MappedTilesValue(OwnedTileValue):
    """A mapped partition parameter; it owns no tile by itself, so `index` is empty.

    Attributes:
        map_shape: tiles per group; 0 for axes that are not walked.
    """

    map_shape: tuple[int, ...]


@dataclass(eq=False)
class TileIndexValue:
    """An index that a walk gave out.

    Attributes:
        owners: the partitions it is good for.
        numbers: tile number per axis; None along axes that are not walked and not chosen.
    """

    owners: tuple[MappedTilesValue, ...]
    numbers: tuple[Value | int | None, ...]


@dataclass(eq=False)
class WalkValue(RangeValue):
    """What a loop over a walk goes through: a range of tile counts, of which each is an index.

    Attributes:
        index: the index of a count, and, for a walk within a box, whether it is in it.
    """

    index: Callable[[Value], tuple[TileIndexValue, Value | None]]
