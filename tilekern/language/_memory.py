"""Loading and storing tiles."""

from __future__ import annotations

import enum
from typing import Literal

from ._annotations import OwnedTile, Scalar, Tensor, Tile
from ._kernel_only import kernel_only
from ._ordering import MemoryOrder, MemoryScope

__all__ = ["Index", "Order", "PaddingMode", "Shape", "load", "load_like", "num_tiles", "store"]

Index = tuple[int | Tile, ...] | int | Tile
"""Which tile: one number per axis; a single number for rank 1."""

Shape = tuple[int, ...] | int
"""Sides of a tile; a single number for rank 1."""

Order = Literal["C", "F"] | tuple[int, ...]
"""Which tensor axis each tile axis runs along: in order, reversed, or a permutation."""


class PaddingMode(enum.Enum):
    """What a load gives for elements past the edge of a tensor."""

    UNDETERMINED = "undetermined"
    """The program promises not to look; zero here."""
    ZERO = "zero"
    """0, of any element type."""
    NEG_ZERO = "neg_zero"
    """-0.0."""
    NAN = "nan"
    """Not a number."""
    POS_INF = "pos_inf"
    """Infinity."""
    NEG_INF = "neg_inf"
    """Minus infinity."""


def load(
    array: Tensor,
    index: Index,
    shape: Shape,
    *,
    order: Order = "C",
    padding_mode: PaddingMode = PaddingMode.ZERO,
    check_bounds: bool = True,
    latency: int | None = None,
    allow_tma: bool | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> Tile:
    """The tile of `shape` at tile index `index`: along axis i it starts at element `index[i] * shape[i]`.

    The index counts tiles, from 0 up to below `num_tiles(array, axis, shape)`; that it is in range is checked, see
    docs/bounds.md. Elements of an edge tile past the tensor are `padding_mode`.
    `order` loads a transposed tile: tile axis i runs along tensor axis `order[i]`. `latency` (1 to 10) and
    `allow_tma` are hints to the GPU's compiler.

    Args:
        check_bounds: False promises that all of the tile lies in the tensor, so that nothing is masked; one that
            does not is an error on the host device and undefined on a GPU. Needs bytecode 13.4.
        memory_order: WEAK, RELAXED or ACQUIRE, between blocks; `memory_scope` is DEVICE if not given.
    """
    kernel_only()


def store(
    array: Tensor,
    index: Index,
    tile: Scalar,
    *,
    order: Order = "C",
    check_bounds: bool = True,
    latency: int | None = None,
    allow_tma: bool | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> None:
    """Write `tile` at tile index `index` (see `load`); elements past the tensor's edge are dropped.

    The tensor is a parameter given as `ca.mut(t)`. Blocks that write the same elements race. `memory_order` is
    WEAK, RELAXED or RELEASE.
    """
    kernel_only()


def load_like(
    array: Tensor,
    out: OwnedTile,
    *,
    padding_mode: PaddingMode = PaddingMode.ZERO,
    latency: int | None = None,
    allow_tma: bool | None = None,
) -> Tile:
    """The tile of `array` that lines up with this block's tile of `out`.

    Both have the same rank. A launch on a tensor too small to have that tile is an error before it starts.
    """
    kernel_only()


def num_tiles(array: Tensor, axis: int, shape: Shape, order: Order = "C") -> Tile:
    """How many tiles of `shape` cover the tensor along tile axis `axis`, the partial one included."""
    kernel_only()
