"""Read-modify-write of elements that no other access comes between.

Each element is atomic, a tile as a whole is not. All take the tensor (given as `ca.mut(t)`) or a pointer tile
first; for a pointer tile, `indices` are offsets from the pointers in elements. The order of a tile's elements
and of blocks is open on a GPU; the host device takes a tile's elements in row-major order.
"""

from __future__ import annotations

from ._annotations import Scalar, Tensor, Tile
from ._gather import ElementIndex
from ._kernel_only import kernel_only
from ._ordering import MemoryOrder, MemoryScope

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
]


def atomic_add(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Add `update` to elements; gives what was there.

    `indices` and `update` broadcast together. Nothing happens where an index is not in the tensor (negative, or
    not below the extent) or the mask is not set: the result there has no meaning. With `check_bounds=False`
    indices are in the tensor by promise.

    Element types: int32, int64, uint32, uint64, float16, bfloat16 (from sm_90 on), float32, float64.
    Integers wrap; each float addition is rounded to nearest even, and float32 sums on a GPU flush subnormal
    numbers to zero.
    """
    kernel_only()


def atomic_max(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Put the larger of `update` and an element in its place; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64.
    """
    kernel_only()


def atomic_min(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Put the smaller of `update` and an element in its place; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64.
    """
    kernel_only()


def atomic_and(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Bitwise and of elements with `update`; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64.
    """
    kernel_only()


def atomic_or(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Bitwise or of elements with `update`; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64.
    """
    kernel_only()


def atomic_xor(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Bitwise exclusive or of elements with `update`; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64.
    """
    kernel_only()


def atomic_xchg(
    array: Tensor,
    indices: ElementIndex,
    update: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Put `update` in the place of elements; gives what was there.

    See `atomic_add`.

    Element types: int32, int64, uint32, uint64, float32, float64.
    """
    kernel_only()


def atomic_cas(
    array: Tensor,
    indices: ElementIndex,
    expected: Scalar,
    desired: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
    memory_scope: MemoryScope = MemoryScope.DEVICE,
) -> Tile:
    """Write `desired` where an element is `expected`; gives what was there.

    See `atomic_add`. Elements are compared bit by bit: 0.0 is not -0.0, and a NaN can be what is expected. Where
    an index is not in the tensor or the mask is not set, the result is `expected`.

    Element types: int32, int64, uint32, uint64, float32, float64.
    """
    kernel_only()
