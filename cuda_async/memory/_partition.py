"""Partitions: a tensor as disjoint tiles, one per tile block of a launch.

A partition is an exclusive operand: each tile block writes only its own tile, so stores cannot race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from . import _layout
from ._hints import unlike_arrays

if TYPE_CHECKING:
    from ._layout import ShapeLike
    from ._tensor import Tensor

__all__ = ["MappedPartition", "Partition"]

MAX_GRID_AXES = 3
"""A launch grid has axes x, y and z; tensor axis 0 goes to x, 1 to y, 2 to z."""


BACK = "get the tensor back with .unpartition()"
OF_TENSORS = ("T", "astype", "dtype", "nbytes", "partition", "permute", "reshape", "shape", "size", "to_host")


def _refuse_attribute(part: Partition | MappedPartition, name: str) -> NoReturn:
    raise AttributeError(f"a {type(part).__name__} has no {name!r}; {BACK}")


def _no_arithmetic(part: Partition | MappedPartition) -> str:
    return f"a {type(part).__name__} has no arithmetic, nor have tensors: use a kernel; {BACK}"


@unlike_arrays(OF_TENSORS, _refuse_attribute, _no_arithmetic)
class Partition:
    """`tensor` cut into tiles of `tile_shape`; tiles at the far edges may be partial.

    Attributes:
        tensor: the memory, whole.
        tile_shape: elements per tile and axis.
        grid: tiles per axis, rounded up.
        prefix: the launch grid may be smaller than `grid`; tiles it does not reach keep their contents.
    """

    __slots__ = ("grid", "prefix", "tensor", "tile_shape")

    def __init__(self, tensor: Tensor, tile_shape: ShapeLike, *, prefix: bool = False) -> None:
        shape = _layout.as_shape(tile_shape)
        if len(shape) != len(tensor.shape):
            raise ValueError(
                f"tile shape {shape} has {len(shape)} axes, the tensor has {len(tensor.shape)} {tensor.shape}"
            )
        if not 1 <= len(shape) <= MAX_GRID_AXES:
            raise ValueError(
                f"partitions have 1 to {MAX_GRID_AXES} axes, because a grid has; the tensor has {len(shape)}: "
                "reshape it, or pass it with mut()"
            )
        if 0 in shape:
            raise ValueError(f"tile shape {shape} has an empty axis; tiles have at least one element")
        self.tensor = tensor
        self.tile_shape = shape
        self.prefix = prefix
        self.grid: tuple[int, ...] = tuple(-(-n // t) for n, t in zip(tensor.shape, shape))

    def unpartition(self) -> Tensor:
        """The tensor again."""
        return self.tensor

    def map(self, map_shape: ShapeLike, tile_blocks: int) -> MappedPartition:
        """For persistent kernels: `tile_blocks` tile blocks walk all tiles in groups of `map_shape`.

        Args:
            map_shape: tiles per group and axis; the order of a walk, so it decides cache reuse. 0 is for an axis
                that is not walked: whoever gets a place along the others owns all tiles along it.
            tile_blocks: how many tile blocks are launched, 1 to the number of places walked.
        Raises:
            ValueError: another rank, no axis that is walked, or a number of blocks outside that range.
        """
        return MappedPartition(self, map_shape, tile_blocks)

    def __repr__(self) -> str:
        kind = ", prefix" if self.prefix else ""
        return f"Partition({self.tensor!r}, tiles of {self.tile_shape}, grid {self.grid}{kind})"


@unlike_arrays([name for name in OF_TENSORS if name != "partition"], _refuse_attribute, _no_arithmetic)
class MappedPartition:
    """A partition whose tiles are walked by a fixed number of tile blocks.

    Attributes:
        partition: the tiles. map_shape: tiles per group, 0 for an axis that is not walked.
        tile_blocks: blocks of the launch. grid: the launch grid, (tile_blocks, 1, 1).
    """

    __slots__ = ("grid", "map_shape", "partition", "tile_blocks")

    def __init__(self, partition: Partition, map_shape: ShapeLike, tile_blocks: int) -> None:
        shape = _layout.as_shape(map_shape)
        if type(tile_blocks) is not int:
            raise TypeError(f"tile_blocks is an int, got {tile_blocks!r}")
        if partition.prefix:
            raise ValueError("a prefix partition cannot be mapped: a walk covers every tile")
        if len(shape) != len(partition.grid) or not any(shape):
            raise ValueError(
                f"map shape {shape} must have {len(partition.grid)} axes: each at least 1, or 0 if it is not walked, "
                "but not all of them"
            )
        total = 1
        for n, walked in zip(partition.grid, shape):
            total *= n if walked else 1
        if not 1 <= tile_blocks <= max(1, total):
            raise ValueError(
                f"tile_blocks is {tile_blocks}; expected 1 to the number of tiles walked, {max(1, total)}; "
                "where sizes vary, give the smaller of both"
            )
        self.partition = partition
        self.map_shape = shape
        self.tile_blocks = tile_blocks
        self.grid = (tile_blocks, 1, 1)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements per tile and axis."""
        return self.partition.tile_shape

    @property
    def tensor(self) -> Tensor:
        """The memory, whole."""
        return self.partition.tensor

    def unpartition(self) -> Tensor:
        """The tensor again."""
        return self.partition.tensor

    def __repr__(self) -> str:
        return f"MappedPartition({self.partition!r}, map {self.map_shape}, {self.tile_blocks} blocks)"
