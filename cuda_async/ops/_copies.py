"""Operations that move, fill and convert what is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import (
    EXPONENTS,
    DType,
    MappedPartition,
    Partition,
    PinnedBlock,
    Tensor,
    as_dtype,
    extent,
    fill_pattern,
    install,
    shares_elements,
)
from ..memory._hints import instead_of_a_value
from ._context import check_operand
from ._creation import INLINE_STAGING_BYTES, host_array
from ._op import DeviceOp, refuse_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..scheduling import Device
    from ._context import ExecutionContext

__all__ = ["astype", "astype_of", "copy", "fill", "memcpy", "to_host", "to_host_of"]


def _strides_bytes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(s * tensor.dtype.itemsize for s in tensor.strides)


def _copy_elements(ctx: ExecutionContext, dst: Tensor, src: Tensor) -> None:
    """Lock held, ordered: copy `src` to `dst`, equal shapes and types."""
    if dst.size == 0:
        return
    if dst.is_contiguous and src.is_contiguous:
        ctx._driver.copy_device_to_device_async(dst._address, src._address, dst.nbytes, ctx.stream._handle)
    else:
        ctx._driver.copy_strided_async(
            dst._address,
            _strides_bytes(dst),
            src._address,
            _strides_bytes(src),
            dst.shape,
            dst.dtype.itemsize,
            ctx.stream._handle,
        )


class _OnTensor(DeviceOp[Any]):
    """An operation on one tensor, which decides the device."""

    __getattr__ = refuse_attribute

    _checks_output = False

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def _device_hint(self) -> Device | None:
        return self._tensor.device

    def _new_bytes(self) -> int:
        """Size of the tensor it makes."""
        return 0

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return ctx.device._would_map(self._new_bytes())

    def prepare(self, ctx: ExecutionContext) -> None:
        if ctx.device._would_map(self._new_bytes()):
            ctx.device._map_ahead(self._new_bytes(), ctx.stream)


class ToHost(_OnTensor):
    """`to_host(tensor)`."""

    _yields_host_data = True

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._block: PinnedBlock | None = None

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        if self._block is None and self._tensor.nbytes:
            self._block = ctx.device.pinned.take_cached(self._tensor.nbytes)
            return self._block is None
        return False

    def prepare(self, ctx: ExecutionContext) -> None:
        self._block = ctx.device.pinned.take(self._tensor.nbytes)

    def execute(self, ctx: ExecutionContext) -> NDArray[Any]:
        tensor = self._tensor
        buffer = check_operand(tensor, ctx.device, "the tensor to copy to the host")
        block, self._block = self._block, None
        if not tensor.nbytes:
            return np.empty(tensor.shape, tensor.dtype)
        assert block is not None, "it was not prepared"
        stream = ctx.stream
        staged = tensor if tensor.is_contiguous else ctx._empty(tensor.shape, tensor.dtype)
        with ctx.device._lock:
            if staged is not tensor:
                ctx.device._order(stream, [buffer], [staged._buffer])
                _copy_elements(ctx, staged, tensor)
            ctx.device._order(stream, [staged._buffer], [])
            stream._retained.append(block)  # first: an interrupt may come behind the driver's call
            ctx._driver.copy_device_to_host_async(
                block.address, staged._address, staged.nbytes, stream._handle
            )
        return block.array(tensor.shape, tensor.dtype)


class Memcpy(DeviceOp[Tensor]):
    """`memcpy(dst, src)` between tensors."""

    __getattr__ = refuse_attribute

    def __init__(self, dst: Tensor, src: Tensor) -> None:
        self._dst = dst
        self._src = src
        self._copied: Tensor | None = None

    def _device_hint(self) -> Device | None:
        return self._dst.device

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return False

    @property
    def target(self) -> Tensor:
        """What it writes."""
        return self._dst

    def check_operands(self, ctx: ExecutionContext) -> None:
        """Raise what `execute` would for one of the tensors; nothing is enqueued."""
        check_operand(self._dst, ctx.device, "the destination")
        check_operand(self._src, ctx.device, "the source")

    def read_before(self, writers: Sequence[Fill | Memcpy | Upload], ctx: ExecutionContext) -> None:
        """Where one of those writes what it reads: it reads that now."""
        if any(_overlap(writer.target, self._src) for writer in writers):
            self._copied = Copy(self._src).execute(ctx)

    def execute(self, ctx: ExecutionContext) -> Tensor:
        dst, copied = self._dst, self._copied
        src = self._src if copied is None else copied
        self._copied = None
        written = check_operand(dst, ctx.device, "the destination")
        read = check_operand(src, ctx.device, "the source")
        overlapping = _overlap(
            dst, src
        )  # maybe of two buffers: memory comes in twice, outputs of graphs are views
        staged = ctx._empty(src.shape, src.dtype) if overlapping else src
        with ctx.device._lock:
            if overlapping:
                ctx.device._order(ctx.stream, [read], [staged._buffer])
                _copy_elements(ctx, staged, src)
            ctx.device._order(ctx.stream, [staged._buffer], [written])
            _copy_elements(ctx, dst, staged)
        return dst


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the byte ranges of two tensors meet."""
    low_a, high_a = extent(a.shape, a.strides)
    low_b, high_b = extent(b.shape, b.strides)
    size_a, size_b = a.dtype.itemsize, b.dtype.itemsize
    return (
        a._address + low_a * size_a < b._address + high_b * size_b
        and b._address + low_b * size_b < a._address + high_a * size_a
    )


class Upload(DeviceOp[Tensor]):
    """`memcpy(dst, array)` from the host."""

    def __init__(self, dst: Tensor, array: np.ndarray[Any, Any]) -> None:
        self._dst = dst
        self._array = array
        self._block: PinnedBlock | None = None

    def _device_hint(self) -> Device | None:
        return self._dst.device

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        size = self._dst.nbytes
        if size == 0 or self._block is not None:
            return False
        if size <= INLINE_STAGING_BYTES:
            block = ctx.device.pinned.take_cached(size)
            if block is not None:
                self._stage(block)
                return False
        return True

    def prepare(self, ctx: ExecutionContext) -> None:
        self._stage(ctx.device.pinned.take(self._dst.nbytes))

    def _stage(self, block: PinnedBlock) -> None:
        np.copyto(block.array(self._dst.shape, self._dst.dtype), self._array)
        self._block = block

    @property
    def target(self) -> Tensor:
        """What it writes."""
        return self._dst

    def check_operands(self, ctx: ExecutionContext) -> None:
        """Raise what `execute` would for the tensor; nothing is enqueued."""
        check_operand(self._dst, ctx.device, "the destination")

    def read_before(self, writers: object, ctx: ExecutionContext) -> None:
        """It reads nothing that they could write."""

    def execute(self, ctx: ExecutionContext) -> Tensor:
        dst = self._dst
        buffer = check_operand(dst, ctx.device, "the destination")
        block, self._block = self._block, None
        if not dst.nbytes:
            return dst
        assert block is not None, "it was not prepared"
        stream = ctx.stream
        staged = dst if dst.is_contiguous else ctx._empty(dst.shape, dst.dtype)
        with ctx.device._lock:
            ctx.device._order(stream, [], [staged._buffer])
            stream._retained.append(block)  # first: an interrupt may come behind the driver's call
            ctx._driver.copy_host_to_device_async(staged._address, block.address, dst.nbytes, stream._handle)
            if staged is not dst:
                ctx.device._order(stream, [staged._buffer], [buffer])
                _copy_elements(ctx, dst, staged)
        return dst


class Copy(_OnTensor):
    """`copy(tensor)`."""

    def _new_bytes(self) -> int:
        return self._tensor.nbytes

    def execute(self, ctx: ExecutionContext) -> Tensor:
        tensor = self._tensor
        check_operand(tensor, ctx.device, "the tensor to copy")
        return copy_into(ctx, ctx._empty(tensor.shape, tensor.dtype), tensor)


def copy_into(ctx: ExecutionContext, result: Tensor, tensor: Tensor) -> Tensor:
    """Enqueue a copy to `result`, which was allocated for it."""
    buffer = check_operand(tensor, ctx.device, "the tensor to copy")
    with ctx.device._lock:
        ctx.device._order(ctx.stream, [buffer], [result._buffer])
        _copy_elements(ctx, result, tensor)
    return result


class Fill(_OnTensor):
    """`fill(tensor, value)`."""

    def __init__(self, tensor: Tensor, pattern: bytes) -> None:
        self._tensor = tensor
        self._pattern = pattern

    @property
    def target(self) -> Tensor:
        """What it writes."""
        return self._tensor

    def check_operands(self, ctx: ExecutionContext) -> None:
        """Raise what `execute` would for the tensor; nothing is enqueued."""
        check_operand(self._tensor, ctx.device, "the tensor to fill")

    def read_before(self, writers: object, ctx: ExecutionContext) -> None:
        """It reads nothing that they could write."""

    def execute(self, ctx: ExecutionContext) -> Tensor:
        tensor = self._tensor
        buffer = check_operand(tensor, ctx.device, "the tensor to fill")
        if tensor.size == 0:
            return tensor
        single = None if tensor.is_contiguous else ctx._empty((), tensor.dtype)
        with ctx.device._lock:
            if single is None:
                ctx.device._order(ctx.stream, [], [buffer])
                ctx._driver.fill_async(tensor._address, self._pattern, tensor.size, ctx.stream._handle)
            else:
                ctx.device._order(ctx.stream, [], [single._buffer, buffer])
                ctx._driver.fill_async(single._address, self._pattern, 1, ctx.stream._handle)
                source = Tensor._make(
                    single._buffer, single._address, tensor.dtype, tensor.shape, (0,) * tensor.ndim
                )
                _copy_elements(ctx, tensor, source)
        return tensor


class AsType(_OnTensor):
    """`astype(tensor, dtype)`."""

    def __init__(self, tensor: Tensor, dtype: DType) -> None:
        self._tensor = tensor
        self._dtype = dtype
        self._ready: Device | None = None

    def _new_bytes(self) -> int:
        return self._tensor.size * self._dtype.itemsize

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        converts = self._dtype != self._tensor.dtype and self._ready is not ctx.device
        return converts or super().needs_prepare(ctx)

    def prepare(self, ctx: ExecutionContext) -> None:
        super().prepare(ctx)
        if self._dtype != self._tensor.dtype:
            ctx._driver.convert_prepare(self._dtype, self._tensor.dtype)
            self._ready = ctx.device

    def execute(self, ctx: ExecutionContext) -> Tensor:
        tensor = self._tensor
        buffer = check_operand(tensor, ctx.device, "the tensor to convert")
        result = ctx._empty(tensor.shape, self._dtype)
        if tensor.size == 0:
            return result
        source = tensor if tensor.is_contiguous else ctx._empty(tensor.shape, tensor.dtype)
        with ctx.device._lock:
            if source is not tensor:
                ctx.device._order(ctx.stream, [buffer], [source._buffer])
                _copy_elements(ctx, source, tensor)
            ctx.device._order(ctx.stream, [source._buffer], [result._buffer])
            if self._dtype == tensor.dtype:
                _copy_elements(ctx, result, source)
            else:
                ctx._driver.convert_async(
                    result._address,
                    self._dtype,
                    source._address,
                    tensor.dtype,
                    tensor.size,
                    ctx.stream._handle,
                )
        return result


# ------------------------------------------------------------------------------------ public


def _tensor(tensor: object, what: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        hint = ""
        if isinstance(tensor, tuple):
            hint = "; pick a component first, with .first(), .last() or [i]"
        elif isinstance(tensor, (Partition, MappedPartition)):
            hint = "; get the tensor back with .unpartition()"
        elif isinstance(tensor, DeviceOp):
            hint = "; use the operation's own method, or .then()"
        elif hasattr(tensor, "__array__"):
            hint = "; bring an array over with from_host()"
        else:
            hint = instead_of_a_value(tensor)
        raise TypeError(f"{what} takes a Tensor, got {type(tensor).__name__}{hint}")
    return tensor


def to_host(tensor: Tensor) -> DeviceOp[NDArray[Any]]:
    """Copy a tensor, of any strides, to a new NumPy array.

    The array lies in pinned memory, which goes back to a cache when the array is dropped. Its contents are there
    once the operation has been awaited; callbacks later in the chain wait for them.
    """
    return ToHost(_tensor(tensor, "to_host()"))


def to_host_of(op: DeviceOp[Tensor]) -> DeviceOp[NDArray[Any]]:
    """The operation behind `op.to_host()`."""
    return op.then(to_host)


def astype(tensor: Tensor, dtype: object) -> DeviceOp[Tensor]:
    """A new, contiguous tensor with the elements converted: to nearest even, floats to integers truncated.

    Raises:
        TypeError: from or to float8_e8m0fnu, which is for storage.
    """
    source, kind = _tensor(tensor, "astype()"), as_dtype(dtype)
    if source.dtype != kind and EXPONENTS in (source.dtype.name, kind.name):
        raise TypeError(
            f"astype() from {source.dtype.name} to {kind.name}: {EXPONENTS} is for storage; convert on the host"
        )
    return AsType(source, kind)


def astype_of(op: DeviceOp[Tensor], dtype: object) -> DeviceOp[Tensor]:
    """The operation behind `op.astype(dtype)`."""
    kind = as_dtype(dtype)
    return op.then(lambda tensor: astype(tensor, kind))


def copy(tensor: Tensor) -> DeviceOp[Tensor]:
    """A new, contiguous tensor with the same elements."""
    return Copy(_tensor(tensor, "copy()"))


def _target(tensor: object, what: str) -> Tensor:
    """A tensor whose elements each have a place of their own."""
    target = _tensor(tensor, what)
    if not target.is_contiguous and shares_elements(target.shape, target.strides):
        raise ValueError(
            f"{what}: elements of the tensor share memory (shape {target.shape}, strides {target.strides}), so it "
            "cannot be written as a whole; write the one that it is a view of"
        )
    return target


def memcpy(dst: Tensor, src: object) -> DeviceOp[Tensor]:
    """Copy `src`, a tensor or a host array, into the existing tensor `dst`; yields `dst`.

    Views work on both sides, also overlapping ones. A host array is read when the operation runs.

    Raises:
        ValueError: another shape, or elements of `dst` share memory. TypeError: another element type.
    """
    target = _target(dst, "memcpy()'s destination")
    source: Any = src if isinstance(src, Tensor) else host_array(src, what="memcpy()")[0]
    if tuple(source.shape) != target.shape:
        raise ValueError(f"memcpy() from shape {tuple(source.shape)} to {target.shape}; shapes must be equal")
    if source.dtype != target.dtype:
        raise TypeError(
            f"memcpy() from {source.dtype.name} to {target.dtype.name}; convert with astype() first"
        )
    return Memcpy(target, source) if isinstance(source, Tensor) else Upload(target, source)


def fill(tensor: Tensor, value: float | np.generic) -> DeviceOp[Tensor]:
    """Set every element of an existing tensor (or view) to `value`, converted as by `full`; yields the tensor.

    Raises:
        OverflowError: a number that an integer element type cannot hold. ValueError: elements share memory.
    """
    target = _target(tensor, "fill()")
    return Fill(target, fill_pattern(value, target.dtype))


class _Factory:
    """What `Tensor`'s methods build."""

    def to_host(self, tensor: Tensor) -> DeviceOp[Any]:
        return to_host(tensor)

    def astype(self, tensor: Tensor, dtype: DType) -> DeviceOp[Tensor]:
        return astype(tensor, dtype)


install(_Factory())
