"""Memory by address: pointer parameters, tiles of pointers, the elements of a tensor as they lie in memory.

Nothing here knows where memory ends: the masks are yours. The host device finds an access outside of every
allocation; a GPU may not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ._annotations import Scalar, Tensor, Tile
from ._kernel_only import kernel_only
from ._ordering import MemoryOrder, MemoryScope

if TYPE_CHECKING:
    from ..dtypes import DType

__all__ = ["Pointer", "PointerMarker", "RawMemory", "make_tensor"]


class PointerMarker:
    """Marks a parameter as the address of elements of a type; written `tk.Pointer[tk.float32]`."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"tk.Pointer[{self.dtype!r}]"


class Pointer:
    """A pointer, or a tile of pointers; as a parameter, `tk.Pointer[tk.float32]` or `tk.Pointer` for any type.

    Given as `ca.mut(t)`, or as a tensor or `ca.read(t)` to read only: the address of the tensor's first element.
    `p + i` and `p - i` move by elements, and broadcast: a pointer and an integer tile give a tile of pointers.
    A kernel may keep pointers in variables, choose between them and carry them through loops.
    """

    dtype: DType
    """Element type of what it points to."""
    shape: tuple[int, ...]
    """Shape of the tile of pointers; () for one."""
    ndim: int
    """Number of axes."""

    def __init__(self) -> None:
        kernel_only("Pointer")

    def __class_getitem__(cls, dtype: DType) -> Any:
        return Annotated[cls, PointerMarker(dtype)]

    def __add__(self, elements: Scalar) -> Pointer:
        kernel_only()

    def __radd__(self, elements: Scalar) -> Pointer:
        kernel_only()

    def __sub__(self, elements: Scalar) -> Pointer:
        kernel_only()

    def reshape(self, shape: tuple[int, ...] | int) -> Pointer:
        """The same pointers in another shape."""
        kernel_only()

    def broadcast_to(self, shape: tuple[int, ...] | int) -> Pointer:
        """The pointers repeated to `shape`."""
        kernel_only()

    def load(
        self,
        *,
        mask: Scalar | None = None,
        padding_value: Scalar = 0,
        latency: int | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> Tile:
        """What the pointers point to; `padding_value` where the mask is not set."""
        kernel_only()

    def store(
        self,
        value: Scalar,
        *,
        mask: Scalar | None = None,
        latency: int | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> None:
        """Write `value` where the pointers point to and the mask is set; of equal pointers one value stays."""
        kernel_only()


class RawMemory:
    """The memory of a tensor by offsets in elements from its first one; `tensor.get_raw_memory()` in a kernel.

    Offsets are integer tiles of any shape. Shape and strides of the tensor mean nothing here.
    """

    dtype: DType
    """Element type."""

    def __init__(self) -> None:
        kernel_only("RawMemory")

    def load_offset(
        self,
        offset: Scalar,
        *,
        mask: Scalar | None = None,
        padding_value: Scalar = 0,
        latency: int | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> Tile:
        """The elements at `offset`; `padding_value` where the mask is not set."""
        kernel_only()

    def store_offset(
        self,
        offset: Scalar,
        value: Scalar,
        *,
        mask: Scalar | None = None,
        latency: int | None = None,
        memory_order: MemoryOrder = MemoryOrder.WEAK,
        memory_scope: MemoryScope | None = None,
    ) -> None:
        """Write `value` at `offset` where the mask is set."""
        kernel_only()

    def atomic_add_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_add` of the elements at `offset`."""
        kernel_only()

    def atomic_max_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_max` of the elements at `offset`."""
        kernel_only()

    def atomic_min_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_min` of the elements at `offset`."""
        kernel_only()

    def atomic_and_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_and` of the elements at `offset`."""
        kernel_only()

    def atomic_or_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_or` of the elements at `offset`."""
        kernel_only()

    def atomic_xor_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_xor` of the elements at `offset`."""
        kernel_only()

    def atomic_xchg_offset(
        self,
        offset: Scalar,
        update: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_xchg` of the elements at `offset`."""
        kernel_only()

    def atomic_cas_offset(
        self,
        offset: Scalar,
        expected: Scalar,
        desired: Scalar,
        *,
        mask: Scalar | None = None,
        memory_order: MemoryOrder = MemoryOrder.ACQ_REL,
        memory_scope: MemoryScope = MemoryScope.DEVICE,
    ) -> Tile:
        """`tk.atomic_cas` of the elements at `offset`."""
        kernel_only()


def make_tensor(
    pointer: Pointer,
    shape: tuple[int | Tile, ...] | int | Tile,
    strides: tuple[int | Tile, ...] | int | Tile | None = None,
) -> Tensor:
    """Memory from a pointer on as a tensor of that shape, to load and store tiles of.

    Nothing is checked: the elements must be memory of the kernel. Strides count elements and are 1 or more;
    row-major without gaps if left out. It can be stored to where the pointer's memory can.
    """
    kernel_only()
