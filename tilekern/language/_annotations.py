"""What kernel parameters and values are called in annotations.

These classes describe; none of them can be made. Inside a kernel the compiler puts its own values in
their place, and type checkers see what those can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from ._kernel_only import kernel_only

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


class Tile:
    """A value in a kernel: elements of one type in a shape known at compile time; rank 0 is a scalar.

    Operators work element by element, with the broadcasting and promotion of docs/language.md.
    """

    dtype: DType
    """Element type."""
    shape: tuple[int, ...]
    """Sides, each a power of two."""
    ndim: int
    """Number of axes."""
    size: int
    """Number of elements."""

    def __init__(self) -> None:
        kernel_only("Tile")

    def astype(self, dtype: DType) -> Tile:
        """`tk.astype(self, dtype)`."""
        kernel_only()

    def reshape(self, shape: tuple[int, ...] | int) -> Tile:
        """`tk.reshape(self, shape)`."""
        kernel_only()

    def permute(self, axes: tuple[int, ...]) -> Tile:
        """`tk.permute(self, axes)`."""
        kernel_only()

    def transpose(self, axis0: int | None = None, axis1: int | None = None) -> Tile:
        """`tk.transpose(self, axis0, axis1)`."""
        kernel_only()

    def item(self) -> Tile:
        """`tk.item(self)`."""
        kernel_only()

    def __getitem__(self, index: object) -> Tile:
        """New axes of size 1 where the index holds None; all else in it is `:` or `...`."""
        kernel_only()

    def __bool__(self) -> bool:
        kernel_only()

    def __add__(self, other: Scalar) -> Tile:
        kernel_only()

    def __sub__(self, other: Scalar) -> Tile:
        kernel_only()

    def __mul__(self, other: Scalar) -> Tile:
        kernel_only()

    def __truediv__(self, other: Scalar) -> Tile:
        kernel_only()

    def __floordiv__(self, other: Scalar) -> Tile:
        kernel_only()

    def __mod__(self, other: Scalar) -> Tile:
        kernel_only()

    def __pow__(self, other: Scalar) -> Tile:
        kernel_only()

    def __matmul__(self, other: Tile) -> Tile:
        kernel_only()

    def __and__(self, other: Scalar) -> Tile:
        kernel_only()

    def __or__(self, other: Scalar) -> Tile:
        kernel_only()

    def __xor__(self, other: Scalar) -> Tile:
        kernel_only()

    def __lshift__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rshift__(self, other: Scalar) -> Tile:
        kernel_only()

    def __radd__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rsub__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rmul__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rtruediv__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rfloordiv__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rmod__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rpow__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rand__(self, other: Scalar) -> Tile:
        kernel_only()

    def __ror__(self, other: Scalar) -> Tile:
        kernel_only()

    def __rxor__(self, other: Scalar) -> Tile:
        kernel_only()

    def __lt__(self, other: Scalar) -> Tile:
        kernel_only()

    def __le__(self, other: Scalar) -> Tile:
        kernel_only()

    def __gt__(self, other: Scalar) -> Tile:
        kernel_only()

    def __ge__(self, other: Scalar) -> Tile:
        kernel_only()

    def __neg__(self) -> Tile:
        kernel_only()

    def __invert__(self) -> Tile:
        kernel_only()

    def __index__(self) -> int:
        kernel_only()


Scalar = Tile | int | float | bool
"""What stands beside a tile in arithmetic: another tile, or a number."""


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
