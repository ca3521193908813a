"""A tensor cut into tiles, as an object: `view = x.tiled_view((4, 64))`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._annotations import Scalar, Tile
from ._kernel_only import kernel_only
from ._ordering import MemoryOrder, MemoryScope

if TYPE_CHECKING:
    from ..dtypes import DType
    from ._memory import Index

__all__ = ["TiledView"]


class TiledView:
    """A tensor cut into tiles; made by `tensor.tiled_view(tile_shape)` in a kernel.

    Tile k of an axis starts at element `k * traversal_steps` of it, which is the tile's side unless steps were
    given: smaller steps give tiles that overlap, larger ones tiles with gaps.
    """

    dtype: DType
    """Element type."""
    tile_shape: tuple[int, ...]
    """Sides of a tile."""
    traversal_steps: tuple[int, ...]
    """Elements from one tile to the next, per axis."""
    ndim: int
    """Number of axes."""

    def __init__(self) -> None:
        kernel_only("TiledView")

    def num_tiles(self, axis: int) -> Tile:
        """How many tiles there are along an axis, those that reach past the edge included."""
        kernel_only()

    def load(
        self,
        index: Index,
        *,
        check_bounds: bool = True,
        latency: int | None = None,
        allow_tma: bool | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> Tile:
        """The tile at `index`; elements past the tensor's edge are the view's padding. See `tk.load`."""
        kernel_only()

    def store(
        self,
        index: Index,
        tile: Scalar,
        *,
        check_bounds: bool = True,
        latency: int | None = None,
        allow_tma: bool | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> None:
        """Write `tile`, broadcast to the view's tile, at `index`; what is past the edge is dropped. See `tk.store`."""
        kernel_only()

    def atomic_store_add(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Add `tile` to the tile at `index`, each element atomically; what is past the edge is dropped.

        Relaxed: it orders nothing else. `memory_scope` is DEVICE or BLOCK. Gives nothing back, so that a GPU may
        combine tiles on their way to memory.

        Element types: int32, int64, uint32, uint64, float16, bfloat16 (from sm_90 on), float32, float64.
        """
        kernel_only()

    def atomic_store_max(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Maximum with `tile` at `index`, each element atomically; see `atomic_store_add`.

        Element types: int32, int64, uint32, uint64.
        """
        kernel_only()

    def atomic_store_min(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Minimum with `tile` at `index`, each element atomically; see `atomic_store_add`.

        Element types: int32, int64, uint32, uint64.
        """
        kernel_only()

    def atomic_store_and(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Bitwise and with `tile` at `index`, each element atomically; see `atomic_store_add`.

        Element types: int32, int64, uint32, uint64.
        """
        kernel_only()

    def atomic_store_or(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Bitwise or with `tile` at `index`, each element atomically; see `atomic_store_add`.

        Element types: int32, int64, uint32, uint64.
        """
        kernel_only()

    def atomic_store_xor(
        self, index: Index, tile: Scalar, *, memory_scope: MemoryScope = MemoryScope.DEVICE
    ) -> None:
        """Bitwise exclusive or with `tile` at `index`, each element atomically; see `atomic_store_add`.

        Element types: int32, int64, uint32, uint64.
        """
        kernel_only()
