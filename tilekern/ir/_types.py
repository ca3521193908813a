"""IR types: frozen values, equal when they mean the same.

f32, i32, bool              a scalar, that is a tile of rank 0
tile<4x8xf32>               a tile in registers
ptr<f32>, tile<8xptr<f32>>  addresses
tensor<?x64xf32, [64, 1]>   memory with a shape and strides; `?` is known at run time only
view<2x32, tensor<...>>     a tensor cut into tiles
sparse_view<2x32, tensor<...>, axis=0>   a tensor of which tiles pick the rows of one axis one by one
token                       an order between memory operations
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType

__all__ = [
    "MAX_TILE_ELEMENTS",
    "PADDINGS",
    "PointerType",
    "SparseViewType",
    "TensorType",
    "TileType",
    "TokenType",
    "Type",
    "ViewType",
    "scalar",
    "tile_shape_problem",
]

MAX_TILE_ELEMENTS = 1 << 24

PADDINGS = ("zero", "neg_zero", "nan", "pos_inf", "neg_inf")
"""What a load may give for elements past the edge of a tensor; all but zero need a float type."""


@dataclass(frozen=True, slots=True)
class PointerType:
    """An address of elements of `pointee`; the element of a tile, not a type of its own."""

    pointee: DType

    def __str__(self) -> str:
        return f"ptr<{self.pointee}>"


@dataclass(frozen=True, slots=True)
class TileType:
    """A tile of elements in registers; without a shape, a scalar."""

    dtype: DType | PointerType
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        total = 1
        for side in self.shape:
            total *= side
        return total

    @property
    def number(self) -> DType:
        """The element type, where it is known to be no pointer."""
        assert isinstance(self.dtype, DType)
        return self.dtype

    def with_dtype(self, dtype: DType | PointerType) -> TileType:
        return TileType(dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TileType:
        return TileType(self.dtype, shape)

    def __str__(self) -> str:
        if not self.shape:
            return str(self.dtype)
        return f"tile<{'x'.join(map(str, self.shape))}x{self.dtype}>"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Memory seen as a tensor; strides count elements, `None` is known at run time only."""

    dtype: DType
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        dims = "".join(f"{_dim(n)}x" for n in self.shape)
        return f"tensor<{dims}{self.dtype}, [{', '.join(map(_dim, self.strides))}]>"


@dataclass(frozen=True, slots=True)
class ViewType:
    """A tensor cut into equal tiles: tile k of tile axis i starts at element k * starts_every[i].

    `order[i]` is the tensor axis of tile axis i. `padding` is what loads give past the edge. `steps` are the
    elements from one tile to the next; where there are none, the sides of the tile: tiles without gap or overlap.
    """

    tile_shape: tuple[int, ...]
    tensor: TensorType
    order: tuple[int, ...]
    padding: str = "zero"
    steps: tuple[int, ...] = ()

    @property
    def starts_every(self) -> tuple[int, ...]:
        """Elements from the start of a tile to that of the next, per tile axis."""
        return self.steps or self.tile_shape

    @property
    def tile(self) -> TileType:
        """Type of the tile a load gives and a store takes."""
        return TileType(self.tensor.dtype, self.tile_shape)

    def __str__(self) -> str:
        extras = ""
        if self.order != tuple(range(len(self.order))):
            extras += f", order=[{', '.join(map(str, self.order))}]"
        if self.padding != "zero":
            extras += f", padding={self.padding}"
        if self.steps:
            extras += f", steps=[{', '.join(map(str, self.steps))}]"
        return f"view<{'x'.join(map(str, self.tile_shape))}, {self.tensor}{extras}>"


@dataclass(frozen=True, slots=True)
class SparseViewType:
    """A tensor whose tiles have any rows of tensor axis `axis`, each by its number, and a window of the others.

    Rows outside of the tensor, and elements past the edge of the others, are `padding` in loads.
    """

    tile_shape: tuple[int, ...]
    tensor: TensorType
    axis: int
    padding: str = "zero"

    @property
    def tile(self) -> TileType:
        """Type of the tile a load gives and a store takes."""
        return TileType(self.tensor.dtype, self.tile_shape)

    def __str__(self) -> str:
        extra = "" if self.padding == "zero" else f", padding={self.padding}"
        return f"sparse_view<{'x'.join(map(str, self.tile_shape))}, {self.tensor}, axis={self.axis}{extra}>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """Orders memory operations: an op that takes a token comes after the op that gave it."""

    def __str__(self) -> str:
        return "token"


Type = TileType | TensorType | ViewType | SparseViewType | TokenType


def scalar(dtype: DType) -> TileType:
    """The rank-0 tile type of `dtype`."""
    return TileType(dtype)


def tile_shape_problem(shape: tuple[int, ...]) -> str | None:
    """What keeps `shape` from being the shape of a tile; None when nothing does."""
    size = 1
    for side in shape:
        if side < 1 or side & (side - 1):
            nearest = 1 << max(0, side - 1).bit_length()
            return (
                f"every side of a tile is a power of two, got shape {shape}; "
                f"use {nearest} in place of {side} and mask or pad what is too much: past the edge a load gives 0, "
                "unless padding_mode= says otherwise"
            )
        size *= side
    if size > MAX_TILE_ELEMENTS:
        return (
            f"a tile holds at most 2**24 = {MAX_TILE_ELEMENTS} elements, shape {shape} has {size}; "
            "use a smaller tile and loop over tiles"
        )
    return None


def _dim(value: int | None) -> str:
    return "?" if value is None else str(value)
