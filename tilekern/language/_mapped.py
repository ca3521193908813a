"""Partitions that a fixed number of blocks walk: persistent kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only

if TYPE_CHECKING:
    from ..dtypes import DType

__all__ = ["MappedTiles", "TileIndex", "Tiles1D", "Tiles2D", "Tiles3D"]


class TileIndex:
    """Which tile of a walk: made by `iter_indices` and its like, and by nothing else.

    Tiles are handed out once each, so two blocks never hold the same index.
    """

    def __init__(self) -> None:
        kernel_only("TileIndex")

    def components(self) -> tuple[Tile, ...]:
        """The tile's numbers along the axes that are walked, in order: int32 scalars.

        They are known to be in range for the tensor that is walked, and loads of it, and of tensors with as
        many tiles, need no check in the kernel.
        """
        kernel_only()

    def at(self, *numbers: Scalar) -> TileIndex:
        """The tile at `numbers` along the axes that are not walked, 0 in the map shape: the block owns all of them."""
        kernel_only()


class MappedTiles:
    """A mapped partition: the tiles of an output, walked by a fixed number of blocks.

    Given as `t.partition(tile_shape).map(map_shape, tile_blocks)`. The grid is (tile_blocks, 1, 1). Stores and
    loads take indices of the walk only, so blocks do not get in each other's way.
    """

    rank: ClassVar[int | None] = None

    dtype: DType
    """Element type."""
    shape: tuple[int, ...]
    """Shape of a tile, known at compile time."""
    map_shape: tuple[int, ...]
    """Tiles per group of the walk; 0 for axes that are not walked."""
    ndim: int
    """Number of axes."""
    tensor_shape: tuple[int, ...]
    """Extents of the whole tensor; tiles at its edge reach past it."""

    def __init__(self) -> None:
        kernel_only("MappedTiles")

    def iter_indices(self) -> Iterable[TileIndex]:
        """This block's share of all tiles, for a `for` loop.

        Tiles are counted group by group, groups and the tiles in them in row-major order; block b of n gets the
        b-th, (b + n)-th, (b + 2n)-th, ...
        """
        kernel_only()

    def iter_indices_with(self, *others: MappedTiles) -> Iterable[TileIndex]:
        """The same, for several outputs at once: the indices are good for each of them.

        They have the same tile and map shapes, and as many tiles along each axis, which every launch checks.
        """
        kernel_only()

    def iter_indices_within(self, *ranges: tuple[Scalar, Scalar]) -> Iterable[TileIndex]:
        """This block's share of the tiles in a box: (first tile, number of tiles) per axis, -1 tiles being the rest.

        A block has the same tiles as in the walk over all, so boxes may overlap from one loop to the next. Tiles
        of the box that there are not are left out.
        """
        kernel_only()

    def load(self, index: TileIndex) -> Tile:
        """The elements of a tile; zero past the tensor's edge."""
        kernel_only()

    def store(self, tile: Scalar, index: TileIndex) -> None:
        """Write a tile; elements past the tensor's edge are dropped. See `OwnedTile.store`."""
        kernel_only()


class Tiles1D(MappedTiles):
    """A mapped partition of rank 1."""

    rank = 1


class Tiles2D(MappedTiles):
    """A mapped partition of rank 2."""

    rank = 2


class Tiles3D(MappedTiles):
    """A mapped partition of rank 3."""

    rank = 3
