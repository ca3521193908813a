"""`Tensor`: an N-d array in device memory, and views of it.

A tensor is metadata over a `Buffer`: making, slicing or reshaping one touches no device. Its contents may
still be on their way; await an operation (`to_host`) to look at them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, final

from ..errors import AliasError
from . import _layout
from ._dtypes import DType, as_dtype
from ._hints import unlike_arrays
from ._op_factory import op_factory
from ._partition import Partition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..ops import DeviceOp
    from ..scheduling import Device
    from ._buffer import Buffer
    from ._layout import ShapeLike

__all__ = ["Tensor"]


def _no_arithmetic(tensor: Tensor) -> str:
    return (
        "tensors have no arithmetic: use a kernel (tilekern.kernels.add and others), or bring the elements to the host "
        "with `await t.to_host()`"
    )


def _refuse_attribute(tensor: Tensor, name: str) -> NoReturn:
    if name == "transpose":
        raise AttributeError(f"a tensor has no {name!r}: write t.T, or t.permute(1, 0), which names the axes")
    raise AttributeError(
        f"a tensor has no {name!r}, its elements are on the device: bring them over with `await t.to_host()`, which "
        "gives a NumPy array"
    )


@final
@unlike_arrays(
    ("item", "tolist", "numpy", "cpu", "sum", "mean", "transpose"), _refuse_attribute, _no_arithmetic
)
class Tensor:
    """An N-d array of one element type in device memory; a view when it shares its buffer.

    Make one with `empty`, `zeros`, `ones`, `full`, `from_host`, `from_dlpack` or `from_foreign`.

    Attributes:
        dtype: element type, a `numpy.dtype`.
        shape: elements per axis.
        strides: distance between neighbours on each axis, in elements; may be 0 or negative.
    """

    __slots__ = ("__weakref__", "_address", "_buffer", "_contiguous", "dtype", "shape", "strides")

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    _buffer: Buffer
    _address: int
    _contiguous: bool | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(
            "tensors are made by empty(), zeros(), full(), from_host(), from_dlpack() or from_foreign()"
        )

    @classmethod
    def _make(
        cls, buffer: Buffer, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor:
        self = object.__new__(cls)
        _set_buffer(self, buffer)
        _set_address(self, address)
        _set_dtype(self, dtype)
        _set_shape(self, shape)
        _set_strides(self, strides)
        _set_contiguous(self, None)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        # Another shape would let kernels and copies run past the memory.
        raise AttributeError(
            f"cannot set {name} of a tensor; reshape(), permute(), reinterpret() and slicing make views of it, "
            "astype() converts"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cannot delete {name} of a tensor")

    # -- facts

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return self._buffer.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        known = self._contiguous
        if known is None:
            known = _layout.is_contiguous(self.shape, self.strides)
            _set_contiguous(self, known)
        return known

    if not TYPE_CHECKING:

        def __setitem__(self, *_: object) -> NoReturn:
            raise TypeError(
                "elements of a tensor are set by an operation: `await ca.fill(t[index], value)`, or "
                "`await ca.memcpy(t[index], array)`"
            )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __bool__(self) -> bool:  # NoReturn would keep type checkers from what comes behind it
        raise TypeError(
            "a tensor has no truth value, its elements are on the device: bring them over with `await t.to_host()`, "
            "or ask for `t is None` or `t.size`"
        )

    def __iter__(self) -> Any:  # never returns
        raise TypeError(
            "tensors are not iterable; bring one to the host with `await t.to_host()`, or index it"
        )

    def __repr__(self) -> str:
        view = "" if self.is_contiguous else f", strides={self.strides}"
        freed = ", freed" if self._buffer.is_freed else ""
        return (
            f"Tensor(shape={self.shape}, dtype={self.dtype.name}{view}, device={str(self.device)!r}{freed})"
        )

    def __array__(self, *_: object, **__: object) -> Any:  # never returns
        raise TypeError(
            "a tensor's elements are on the device; bring them over with `await t.to_host()` "
            "(or `t.to_host().sync()`)"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tensor cannot be copied or pickled by Python; copy it with ca.copy(tensor), "
            "or send an array, from to_host()"
        )

    # -- views

    def _view(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return Tensor._make(
            self._buffer, self._address + offset * self.dtype.itemsize, self.dtype, shape, strides
        )

    def __getitem__(self, key: object) -> Tensor:
        """A view by ints, slices (any step), `...` and `None`, as in NumPy. Never copies.

        Raises:
            IndexError: too many indices or one out of range. TypeError: an index array.
        """
        offset, shape, strides = _layout.index_view(self.shape, self.strides, key)
        return self._view(offset, shape, strides)

    def reshape(self, *shape: ShapeLike) -> Tensor:  # ints, or one sequence of ints
        """A view with another shape; one axis may be -1.

        Raises:
            ValueError: another number of elements, or it would need a copy.
        """
        new: Any = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if not isinstance(new, tuple) and hasattr(new, "__iter__"):
            new = tuple(new)
        if self.is_contiguous:
            target = _layout.inferred_shape(self.shape, new)
            return self._view(0, target, _layout.contiguous_strides(target))
        target, strides = _layout.reshaped(self.shape, self.strides, new)
        return self._view(0, target, strides)

    def permute(self, *axes: Any) -> Tensor:  # ints, or one sequence of ints
        """A view with the axes in another order; without arguments, reversed."""
        order: Any = axes or tuple(range(len(self.shape)))[::-1]
        if len(axes) == 1 and hasattr(axes[0], "__getitem__"):
            order = tuple(axes[0])
        shape, strides = _layout.permuted(self.shape, self.strides, order)
        return self._view(0, shape, strides)

    @property
    def T(self) -> Tensor:
        """The view with the axes reversed."""
        return self.permute()

    def reinterpret(self, dtype: object) -> Tensor:
        """A view of the same bytes as another element type; the last axis is scaled.

        Raises:
            ValueError: not contiguous, the bytes do not divide evenly, or the address is not aligned.
        """
        new = as_dtype(dtype)
        if not self.is_contiguous:
            raise ValueError(f"reinterpret needs a contiguous tensor, got strides {self.strides}")
        if new.itemsize == self.dtype.itemsize:
            shape = self.shape
        else:
            if not self.shape:
                raise ValueError(
                    f"a tensor without axes cannot change from {self.dtype.name} to {new.name}: sizes differ"
                )
            last = self.shape[-1] * self.dtype.itemsize
            if last % new.itemsize:
                raise ValueError(
                    f"the last axis holds {last} bytes, which is no multiple of {new.name}'s {new.itemsize}"
                )
            shape = (*self.shape[:-1], last // new.itemsize)
        if self._address % new.itemsize:
            raise ValueError(f"this view starts at an address that is not aligned for {new.name}")
        return Tensor._make(self._buffer, self._address, new, shape, _layout.contiguous_strides(shape))

    # -- kernels' operands

    def partition(self, tile_shape: ShapeLike) -> Partition:
        """Disjoint tiles of `tile_shape`, one per tile block: an exclusive operand of a tile kernel."""
        return Partition(self, tile_shape)

    def partition_prefix(self, tile_shape: ShapeLike) -> Partition:
        """Like `partition`, but the grid may cover only the first tiles of each axis."""
        return Partition(self, tile_shape, prefix=True)

    def try_partition(self, tile_shape: ShapeLike) -> Partition:
        """`partition`, refused when another live tensor or view shares the memory.

        Raises:
            AliasError: the memory has another owner.
        """
        import sys

        # Ours is one reference; getrefcount's argument is another.
        others = sys.getrefcount(self._buffer) - 2
        if others > 0:
            raise AliasError(
                f"the memory of {self!r} has {others} other live view(s); drop them first, "
                "or use .partition() when you know that they are not used"
            )
        return Partition(self, tile_shape)

    # -- operations

    def to_host(self) -> DeviceOp[NDArray[Any]]:
        """An operation that copies the elements to a new NumPy array. Works for any strides."""
        return op_factory().to_host(self)

    def astype(self, dtype: object) -> DeviceOp[Tensor]:
        """An operation that yields a new contiguous tensor of another element type.

        Floats round to nearest even; floats to integers truncate.
        """
        return op_factory().astype(self, as_dtype(dtype))

    def free(self) -> None:
        """Free the memory now, in stream order behind its last use; every view of it becomes unusable.

        Rarely needed: dropping the last reference does the same.
        """
        self._buffer.free()

    # -- other libraries

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Export through DLPack; the consumer shares the memory and keeps it alive.

        Args:
            stream: the consumer's stream, as the array API standard has it: on CUDA 1 or None is the
                legacy default stream, 2 the per-thread one, -1 asks for no ordering, else an address.
        Raises:
            BufferError: another device or a copy is asked for, or the element type has no DLPack code.
        """
        from ._dlpack import export_capsule

        return export_capsule(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        from ._dlpack import dlpack_device

        return dlpack_device(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface; AttributeError on the host device, as the rule is."""
        from ._array_interface import cuda_array_interface

        return cuda_array_interface(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface is refused: contents may be in flight. Use `to_host()` or DLPack."""
        raise AttributeError("__array_interface__")


def host_view(tensor: Tensor) -> np.ndarray[Any, Any]:
    """NumPy view of a host-device tensor's live memory, for the layers that know it is safe."""
    import ctypes

    import numpy as np

    low, high = _layout.extent(tensor.shape, tensor.strides)
    size = tensor.dtype.itemsize
    if high == low:
        return np.empty(tensor.shape, tensor.dtype)
    raw = (ctypes.c_ubyte * ((high - low) * size)).from_address(tensor._address + low * size)
    strides = tuple(s * size for s in tensor.strides)
    return np.ndarray(tensor.shape, tensor.dtype, memoryview(raw), -low * size, strides)


_set_buffer, _set_address, _set_dtype, _set_shape, _set_strides, _set_contiguous = (
    vars(Tensor)[name].__set__ for name in ("_buffer", "_address", "dtype", "shape", "strides", "_contiguous")
)
