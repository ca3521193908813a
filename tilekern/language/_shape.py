"""Moving the elements of tiles, and changing their type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only
from ._rounding import RoundingMode

if TYPE_CHECKING:
    from ..dtypes import DType
    from ._memory import Shape

__all__ = [
    "astile",
    "astype",
    "bitcast",
    "broadcast_to",
    "cat",
    "expand_dims",
    "extract",
    "insert",
    "item",
    "pack_to_bytes",
    "permute",
    "reshape",
    "transpose",
    "unpack_from_bytes",
]


def reshape(x: Tile, shape: Shape) -> Tile:
    """The same elements, in row-major order, in another shape; one side may be -1."""
    kernel_only()


def broadcast_to(x: Scalar, shape: Shape) -> Tile:
    """Repeated to `shape` by NumPy's rules: axes of size 1, and new ones in front."""
    kernel_only()


def expand_dims(x: Tile, axis: int | tuple[int, ...]) -> Tile:
    """With new axes of size 1 at these positions of the result."""
    kernel_only()


def permute(x: Tile, axes: tuple[int, ...]) -> Tile:
    """Axis i of the result is axis `axes[i]` of `x`."""
    kernel_only()


def transpose(x: Tile, axis0: int | None = None, axis1: int | None = None) -> Tile:
    """With two axes swapped; a tile of rank 2 needs none named."""
    kernel_only()


def cat(tiles: tuple[Tile, ...], axis: int) -> Tile:
    """Two tiles of one shape, or four, or eight, one after the other along `axis`."""
    kernel_only()


def extract(x: Tile, index: tuple[Scalar, ...] | Scalar, shape: Shape) -> Tile:
    """Part number `index` of the equal parts of `shape` that `x` falls into; `shape` divides its sides.

    An index that is no part's is an error: while compiling if it is known then, else a `KernelIndexError` on the
    host device, and undefined on a GPU.
    """
    kernel_only()


def insert(x: Tile, index: tuple[Scalar, ...] | Scalar, value: Tile) -> Tile:
    """`x` with part number `index` of the parts of the shape of `value` replaced by `value`; see `extract`."""
    kernel_only()


def astile(value: object, dtype: DType | None = None) -> Tile:
    """A tile of numbers and scalars in nested tuples, as `np.array` makes one; every length is a power of two.

    Without `dtype`, they are brought to one type as operands of an operator are.
    """
    kernel_only()


def item(x: Tile) -> Tile:
    """The one element of a tile of size 1, as a scalar."""
    kernel_only()


def astype(x: Scalar, dtype: DType, *, rounding_mode: RoundingMode | None = None) -> Tile:
    """The same numbers as `dtype`, rounded to nearest even unless told otherwise.

    Float to integer drops the fraction and saturates; a NaN gives 0. Integers keep their low bits. To bool
    means "is not 0". float8_e8m0fnu rounds magnitudes towards zero, or up (RP). Which conversion takes which
    rounding mode is in docs/language.md.
    """
    kernel_only()


def bitcast(x: Tile, dtype: DType) -> Tile:
    """The same bits read as another type of equal width."""
    kernel_only()


def pack_to_bytes(x: Tile) -> Tile:
    """The bytes of the elements, in row-major order, as a uint8 tile of rank 1; little-endian.

    Two float4_e2m1fn share a byte, the first in its lower half. bool and tfloat32 have no bytes of their own:
    convert them first.
    """
    kernel_only()


def unpack_from_bytes(x: Tile, dtype: DType) -> Tile:
    """The elements of type `dtype` whose bytes a uint8 tile holds, as a tile of rank 1; undoes `pack_to_bytes`."""
    kernel_only()
