"""Other libraries' memory and work: borrowed memory, and calls that run in our order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..driver import FunctionInfo, HostFunction, HostImage, HostLaunch
from ..memory import Buffer, Tensor, Usage, as_dtype, as_shape, contiguous_strides, extent
from ._context import check_operand
from ._module import Function, Module
from ._op import DeviceOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..scheduling import Device, Stream
    from ._context import ExecutionContext

__all__ = ["foreign", "from_foreign"]


def from_foreign(
    owner: object,
    address: int,
    shape: object,
    dtype: object,
    *,
    strides: object = None,
    size_bytes: int,
    device: Device,
) -> Tensor:
    """A tensor on memory that another library owns; `owner` is kept alive while anything uses it.

    Its order with our work is kept from now on; with the owner's own work it is the caller's (see `foreign`).

    Args:
        address: of the first element. strides: in elements, >= 0; row-major without.
        size_bytes: how much memory the owner has at `address`.
    Raises:
        ValueError: a negative stride, an address that is not aligned, or an extent beyond `size_bytes`.
    """
    kind = as_dtype(dtype)
    dims = as_shape(shape)
    steps = contiguous_strides(dims) if strides is None else as_shape(strides)
    if len(steps) != len(dims):
        raise ValueError(f"strides {steps} and shape {dims} have different lengths")
    _, high = extent(dims, steps)
    if high * kind.itemsize > size_bytes:
        raise ValueError(
            f"shape {dims} with strides {steps} of {kind.name} reaches {high * kind.itemsize} bytes, "
            f"the owner has {size_bytes}"
        )
    if address % kind.itemsize:
        raise ValueError(f"address {address:#x} is not aligned for {kind.name}")
    return foreign_tensor(owner, address, dims, steps, kind, size_bytes, device)


def foreign_tensor(
    owner: object,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    size_bytes: int,
    device: Device,
) -> Tensor:
    """A tensor on checked foreign memory, known to the simulated device where it is that."""
    if size_bytes and device.kind == "host":
        owner = _HostRegistration(device, address, size_bytes, owner)
    buffer = Buffer(device, address, size_bytes, Usage(), owner=owner)
    return Tensor._make(buffer, address, dtype, shape, strides)


class _HostRegistration:
    """Foreign memory that the simulated device may touch, for as long as this lives."""

    def __init__(self, device: Device, address: int, size_bytes: int, owner: object) -> None:
        self._memory = device.driver.memory  # type: ignore[attr-defined]  # the host driver has one
        self._address = address
        self._owner = owner
        self._memory.add_foreign(address, size_bytes, owner)

    def __del__(self) -> None:
        self._memory.remove_foreign(self._address)


class Foreign(DeviceOp[tuple[Tensor, ...]]):
    """`foreign(fn, reads=, writes=)`."""

    def __init__(
        self, fn: Callable[[Stream], object], reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]
    ) -> None:
        self._fn = fn
        self._reads = reads
        self._writes = writes
        self._call: Function | None = None

    def _device_hint(self) -> Device | None:
        return next((t.device for t in (*self._reads, *self._writes)), None)

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return ctx.device.kind == "host" and self._call is None

    def prepare(self, ctx: ExecutionContext) -> None:
        fn, stream = self._fn, ctx.stream
        image = HostImage(functions={"foreign": _HostCall(lambda: fn(stream))}, name="foreign call")
        self._call = Module.from_host_image(image).function("foreign")
        self._call.load(ctx.device)

    def execute(self, ctx: ExecutionContext) -> tuple[Tensor, ...]:
        for tensor in (*self._reads, *self._writes):
            check_operand(tensor, ctx.device, "a tensor of a foreign call")
        if self._call is not None:
            self._call.enqueue(ctx, (1, 1, 1), (1, 1, 1), (), reads=self._reads, writes=self._writes)
        else:
            for tensor in self._reads:
                ctx.read(tensor)
            for tensor in self._writes:
                ctx.write(tensor)
            self._fn(ctx.stream)
        return (*self._reads, *self._writes)


class _HostCall(HostFunction):
    """A Python call in the simulated device's stream order."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    @property
    def info(self) -> FunctionInfo:
        return FunctionInfo(name="foreign", parameters=(), max_threads_per_block=1)

    def start(self, launch: HostLaunch) -> Iterator[None]:
        self._call()
        return
        yield


def foreign(
    fn: Callable[[Stream], object], *, reads: Sequence[Tensor] = (), writes: Sequence[Tensor] = ()
) -> DeviceOp[tuple[Tensor, ...]]:
    """Run another library's work in the order of ours: `fn(stream)` enqueues it on `stream`.

    On a CUDA device `fn` is called while enqueueing and must put its work on the stream it is given (which has
    `__cuda_stream__` and `.handle`); on the host device it is called in the stream's order, on the engine's thread.

    Yields the tensors of `reads`, then of `writes`.
    """
    return Foreign(fn, tuple(reads), tuple(writes))
