"""Elements and rows by their indices."""

from __future__ import annotations

from dataclasses import dataclass

from ._annotations import Scalar, Tensor, Tile
from ._kernel_only import kernel_only
from ._memory import PaddingMode
from ._ordering import MemoryOrder, MemoryScope

__all__ = [
    "ElementIndex",
    "Slice",
    "gather",
    "load_advanced_indexing",
    "scatter",
    "store_advanced_indexing",
]

ElementIndex = tuple[int | Tile, ...] | int | Tile
"""Which elements: a number or integer tile per axis, which broadcast together; one alone for rank 1."""


@dataclass(frozen=True)
class Slice:
    """`length` elements of an axis from element `start` on, in `load_advanced_indexing` and its counterpart.

    `length` is a power of two, known at compile time; `start` may be a scalar of the running kernel.
    """

    start: int | Tile
    length: int


def gather(
    array: Tensor,
    indices: ElementIndex,
    *,
    mask: Scalar | None = None,
    padding_value: Scalar = 0,
    check_bounds: bool = True,
    latency: int | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> Tile:
    """The elements at `indices`, in the shape the indices broadcast to.

    An element gives `padding_value` where the mask is not set and where an index is not in the tensor:
    negative, or not below the extent. With `check_bounds=False` that is not looked at, and an index which
    is not in the tensor (where the mask is set) is an error on the host device and undefined on a GPU.

    Args:
        mask: a bool tile; it and `padding_value` broadcast to the shape of the indices.
        latency: 1 to 10, a hint to the GPU's compiler.
        memory_order: WEAK, RELAXED or ACQUIRE; `memory_scope` is DEVICE if not given.
    """
    kernel_only()


def scatter(
    array: Tensor,
    indices: ElementIndex,
    value: Scalar,
    *,
    mask: Scalar | None = None,
    check_bounds: bool = True,
    latency: int | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> None:
    """Write `value` to the elements at `indices`, which broadcast together with it.

    Nothing is written where the mask is not set or an index is not in the tensor; see `gather`. Where two
    indices are of one element, one of the values stays, on the host device the last in row-major order. The
    tensor is a parameter given as `ca.mut(t)`; `memory_order` is WEAK, RELAXED or RELEASE.
    """
    kernel_only()


def load_advanced_indexing(
    array: Tensor,
    indices: tuple[Tile | Slice, ...],
    *,
    padding_mode: PaddingMode = PaddingMode.ZERO,
    latency: int | None = None,
    allow_tma: bool | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> Tile:
    """Rows by their numbers: an index per axis, one of them an integer tile of rank 1, the others `tk.Slice`.

        rows = tk.load_advanced_indexing(table, (ids, tk.Slice(0, 64)))     # table[ids, 0:64]

    Element (i, j) of the result is `array[ids[i], start + j]`. It is `padding_mode` where the row is not in the
    tensor (negative numbers are not) and past the tensor's edge. A slice begins in the tensor; one that does
    not is an error on the host device and undefined on a GPU.
    """
    kernel_only()


def store_advanced_indexing(
    array: Tensor,
    indices: tuple[Tile | Slice, ...],
    tile: Scalar,
    *,
    latency: int | None = None,
    allow_tma: bool | None = None,
    memory_order: MemoryOrder = MemoryOrder.WEAK,
    memory_scope: MemoryScope | None = None,
) -> None:
    """Write rows by their numbers; see `load_advanced_indexing`. What lies outside of the tensor is dropped.

    Where a row is there twice, one of the two stays.
    """
    kernel_only()
