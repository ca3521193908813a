"""What kernel parameters and values are called in annotations.

These classes describe; none of them can be made. Inside a kernel the compiler puts its own values in
their place, and type checkers see what those can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from ._kernel_only import kernel_only
from ._tile import Scalar, Tile

if TYPE_CHECKING:
    from ..dtypes import DType

__all__ = [
    "Constant",
    "ConstantMarker",
    "OwnedTile",
    "Scalar",
    "Tensor",
    "Tensor1D",
    "Tensor2D",
    "Tensor3D",
    "Tile",
    "Tile1D",
    "Tile2D",
    "Tile3D",
]


class ConstantMarker:
    """Marks a parameter as a compile-time constant; written `tk.Constant[int]`."""

    def __repr__(self) -> str:
        return "tk.Constant"


T = TypeVar("T")

Constant = Annotated[T, ConstantMarker()]
"""A parameter known when the kernel is compiled, one compilation per value: `BLOCK: tk.Constant[int]`."""


class Tensor:
    """A tensor parameter of any rank: memory that tiles are loaded from and, given as `ca.mut(t)`, stored to.

    The memory is shared with all blocks. A kernel that stores to a tensor given without `mut` does not
    compile.
    """

    rank: ClassVar[int | None] = None

    dtype: DType
    """Element type."""
    shape: tuple[int, ...]
    """Extent of each axis; a number of the launch, not of the compilation."""
    strides: tuple[int, ...]
    """Elements from one index to the next, per axis."""
    ndim: int
    """Number of axes."""

    def __init__(self) -> None:
        kernel_only("Tensor")


class Tensor1D(Tensor):
    """A tensor parameter of rank 1."""

    rank = 1


class Tensor2D(Tensor):
    """A tensor parameter of rank 2."""

    rank = 2


class Tensor3D(Tensor):
    """A tensor parameter of rank 3."""

    rank = 3


class OwnedTile:
    """A partition parameter: the one tile of an output that belongs to this block, and to no other.

    Given as `t.partition(tile_shape)`. Blocks and tiles correspond one to one, so a kernel that writes
    only through these has no races and no out-of-range stores.
    """

    rank: ClassVar[int | None] = None

    dtype: DType
    """Element type."""
    shape: tuple[int, ...]
    """Shape of the tile, known at compile time."""
    ndim: int
    """Number of axes."""
    index: tuple[int, ...]
    """Which tile it is: the block's index along each axis."""
    tensor_shape: tuple[int, ...]
    """Extents of the whole tensor; tiles at its edge reach past it."""

    def __init__(self) -> None:
        kernel_only("OwnedTile")

    def load(self) -> Tile:
        """The tile's elements; zero past the tensor's edge."""
        kernel_only()

    def store(self, tile: Scalar) -> None:
        """Write the tile; elements past the tensor's edge are dropped.

        The value is broadcast to the tile's shape and must have its element type, unless it is a number.
        """
        kernel_only()


class Tile1D(OwnedTile):
    """A partition parameter of rank 1."""

    rank = 1


class Tile2D(OwnedTile):
    """A partition parameter of rank 2."""

    rank = 2


class Tile3D(OwnedTile):
    """A partition parameter of rank 3."""

    rank = 3
