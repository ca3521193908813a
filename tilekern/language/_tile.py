"""What stands for a value in a kernel.

The class describes and cannot be made: inside a kernel the compiler puts its own values in its place, and
type checkers see what those can do. Methods are the functions of the language with the tile as their first
argument; `frontend` takes their names from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._kernel_only import kernel_only
from ._rounding import RoundingMode

if TYPE_CHECKING:
    from ..dtypes import DType
    from ._memory import Shape
    from ._reduce import Axis, Identity

__all__ = ["Scalar", "Tile"]


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

    def astype(self, dtype: DType, *, rounding_mode: RoundingMode | None = None) -> Tile:
        """`tk.astype(self, ...)`."""
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

    def broadcast_to(self, shape: Shape) -> Tile:
        """`tk.broadcast_to(self, ...)`."""
        kernel_only()

    def expand_dims(self, axis: int | tuple[int, ...]) -> Tile:
        """`tk.expand_dims(self, ...)`."""
        kernel_only()

    def extract(self, index: tuple[Scalar, ...] | Scalar, shape: Shape) -> Tile:
        """`tk.extract(self, ...)`."""
        kernel_only()

    def insert(self, index: tuple[Scalar, ...] | Scalar, value: Tile) -> Tile:
        """`tk.insert(self, ...)`."""
        kernel_only()

    def bitcast(self, dtype: DType) -> Tile:
        """`tk.bitcast(self, ...)`."""
        kernel_only()

    def pack_to_bytes(self) -> Tile:
        """`tk.pack_to_bytes(self)`."""
        kernel_only()

    def unpack_from_bytes(self, dtype: DType) -> Tile:
        """`tk.unpack_from_bytes(self, ...)`."""
        kernel_only()

    def sum(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        rounding_mode: RoundingMode | None = None,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.sum(self, ...)`."""
        kernel_only()

    def prod(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        rounding_mode: RoundingMode | None = None,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.prod(self, ...)`."""
        kernel_only()

    def max(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        propagate_nan: bool = True,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.max(self, ...)`."""
        kernel_only()

    def min(
        self,
        axis: Axis = None,
        *,
        keepdims: bool = False,
        propagate_nan: bool = True,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.min(self, ...)`."""
        kernel_only()

    def argmax(self, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
        """`tk.argmax(self, ...)`."""
        kernel_only()

    def argmin(self, axis: int | None = None, *, keepdims: bool = False, propagate_nan: bool = True) -> Tile:
        """`tk.argmin(self, ...)`."""
        kernel_only()

    def cumsum(
        self,
        axis: int = 0,
        *,
        reverse: bool = False,
        rounding_mode: RoundingMode | None = None,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.cumsum(self, ...)`."""
        kernel_only()

    def cumprod(
        self,
        axis: int = 0,
        *,
        reverse: bool = False,
        rounding_mode: RoundingMode | None = None,
        flush_to_zero: bool = False,
    ) -> Tile:
        """`tk.cumprod(self, ...)`."""
        kernel_only()

    def reduce(
        self, axis: int, func: Callable[..., object], identity: Identity, *, keepdims: bool = False
    ) -> Tile:
        """`tk.reduce(self, ...)`."""
        kernel_only()

    def scan(
        self, axis: int, func: Callable[..., object], identity: Identity, *, reverse: bool = False
    ) -> Tile:
        """`tk.scan(self, ...)`."""
        kernel_only()

    def exp(self, *, rounding_mode: RoundingMode | None = None) -> Tile:
        """`tk.exp(self, ...)`."""
        kernel_only()

    def exp2(self, *, flush_to_zero: bool = False) -> Tile:
        """`tk.exp2(self, ...)`."""
        kernel_only()

    def log(self) -> Tile:
        """`tk.log(self)`."""
        kernel_only()

    def log2(self) -> Tile:
        """`tk.log2(self)`."""
        kernel_only()

    def sqrt(self, *, rounding_mode: RoundingMode | None = None, flush_to_zero: bool = False) -> Tile:
        """`tk.sqrt(self, ...)`."""
        kernel_only()

    def rsqrt(self, *, flush_to_zero: bool = False) -> Tile:
        """`tk.rsqrt(self, ...)`."""
        kernel_only()

    def sin(self) -> Tile:
        """`tk.sin(self)`."""
        kernel_only()

    def cos(self) -> Tile:
        """`tk.cos(self)`."""
        kernel_only()

    def tan(self) -> Tile:
        """`tk.tan(self)`."""
        kernel_only()

    def sinh(self) -> Tile:
        """`tk.sinh(self)`."""
        kernel_only()

    def cosh(self) -> Tile:
        """`tk.cosh(self)`."""
        kernel_only()

    def tanh(self, *, rounding_mode: RoundingMode | None = None) -> Tile:
        """`tk.tanh(self, ...)`."""
        kernel_only()

    def floor(self) -> Tile:
        """`tk.floor(self)`."""
        kernel_only()

    def ceil(self) -> Tile:
        """`tk.ceil(self)`."""
        kernel_only()

    def abs(self) -> Tile:
        """`tk.abs(self)`."""
        kernel_only()

    def isnan(self) -> Tile:
        """`tk.isnan(self)`."""
        kernel_only()

    def mulhi(self, y: Scalar) -> Tile:
        """`tk.mulhi(self, ...)`."""
        kernel_only()

    def minimum(self, y: Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
        """`tk.minimum(self, ...)`."""
        kernel_only()

    def maximum(self, y: Scalar, *, propagate_nan: bool = True, flush_to_zero: bool = False) -> Tile:
        """`tk.maximum(self, ...)`."""
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

    def __eq__(self, other: object) -> Tile:  # type: ignore[override]  # element by element
        kernel_only()

    def __ne__(self, other: object) -> Tile:  # type: ignore[override]
        kernel_only()

    __hash__ = None  # type: ignore[assignment]  # as for all that compares element by element

    def __neg__(self) -> Tile:
        kernel_only()

    def __invert__(self) -> Tile:
        kernel_only()

    def __index__(self) -> int:
        kernel_only()


Scalar = Tile | int | float | bool
"""What stands beside a tile in arithmetic: another tile, or a number."""
