"""What kernel parameters and values are called in annotations.

These classes describe; none of them can be made. Inside a kernel the compiler puts its own values in
their place, and type checkers see what those can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from ._kernel_only import kernel_only
from ._tile import Scalar, Tile

if TYPE_CHECKING:
    from ..dtypes import DType
    from ._memory import Order, PaddingMode
    from ._pointers import RawMemory
    from ._views import TiledView

__all__ = [
    "ArrayAnnotation",
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


@dataclass(frozen=True, kw_only=True)
class ArrayAnnotation:
    """What is compiled in of a tensor: `x: Annotated[tk.Tensor2D, tk.ArrayAnnotation(static_shape_dims=(1,))]`.

    Attributes:
        static_shape_dims: axes whose extents are known at compile time, one compilation for each value.
        static_stride_dims: axes whose strides are. Where any is named, a stride of 1 along others is not
            noticed by itself, as it is otherwise.
        index_dtype: the type of its extents and strides in the kernel: `tk.int32` or `tk.int64`. If left out,
            int32 where all of them fit.
    """

    static_shape_dims: tuple[int, ...] = ()
    static_stride_dims: tuple[int, ...] = ()
    index_dtype: DType | None = None

    def __post_init__(self) -> None:
        for name in ("static_shape_dims", "static_stride_dims"):
            axes = getattr(self, name)
            axes = (axes,) if isinstance(axes, int) else tuple(axes)
            if not all(isinstance(axis, int) for axis in axes):
                raise TypeError(f"{name} names axes, as in (0, 1), got {axes!r}")
            object.__setattr__(self, name, axes)
        if self.index_dtype is not None and getattr(self.index_dtype, "name", "") not in ("int32", "int64"):
            raise TypeError(f"index_dtype is tk.int32 or tk.int64, got {self.index_dtype!r}")


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

    def tiled_view(
        self,
        tile_shape: tuple[int, ...] | int,
        *,
        padding_mode: PaddingMode | None = None,
        traversal_steps: tuple[int, ...] | int | None = None,
        order: Order = "C",
    ) -> TiledView:
        """The tensor cut into tiles of `tile_shape`, to load, store, and combine with atomically.

        Args:
            padding_mode: what loads give past the edge; ZERO if not given.
            traversal_steps: elements from the start of a tile to that of the next, per tile axis; the tile's sides
                if not given.
            order: as for `tk.load`.
        """
        kernel_only()

    def slice(self, axis: int, start: int | Tile, stop: int | Tile) -> Tensor:
        """The part from `start` up to below `stop` along an axis, as a tensor; nothing is copied.

        `0 <= start <= stop <= shape[axis]`: else an error while compiling, before the launch, or in the kernel,
        as soon as it is known. The extent is known at compile time where both are.
        """
        kernel_only()

    def get_raw_memory(self) -> RawMemory:
        """The tensor's memory, by offsets in elements from its first one."""
        kernel_only()


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

    def load(self, *, latency: int | None = None, allow_tma: bool | None = None) -> Tile:
        """The tile's elements; zero past the tensor's edge. Hints as for `tk.load`."""
        kernel_only()

    def store(self, tile: Scalar, *, latency: int | None = None, allow_tma: bool | None = None) -> None:
        """Write the tile; elements past the tensor's edge are dropped. Hints as for `tk.store`.

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
