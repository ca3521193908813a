"""Other libraries' memory and work: borrowed memory, and calls that run in our order."""

from __future__ import annotations

import inspect
import itertools
import operator
import sys
import weakref
from collections.abc import Iterable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING

import numpy as np

from ..driver import FunctionInfo, HostFunction, HostImage, HostLaunch, ParameterInfo
from ..errors import ContextError, CudaAsyncError
from ..memory import (
    CPU,
    CUDA,
    CUDA_MANAGED,
    CUDA_PINNED,
    Buffer,
    ForeignArray,
    Tensor,
    Usage,
    as_dlpack_device,
    as_dtype,
    as_shape,
    contiguous_strides,
    extent,
    import_capsule,
    numpy_array,
    parse_cuda_array_interface,
    request_capsule,
)
from ..memory._hints import instead_of_a_value
from ..scheduling import (
    Device,
    adopt,
    all_open_devices,
    as_callback,
    checked_open,
    default_device_if_known,
    foreign_calls,
    wait_for_producer,
)
from ._context import check_operand
from ._creation import refuse_masked
from ._module import Module
from ._op import DeviceOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..driver.host import HostMemory
    from ..scheduling import Stream
    from ._context import ExecutionContext

__all__ = ["FOREIGN_CALL", "foreign", "from_cuda_array_interface", "from_dlpack", "from_foreign"]


def from_foreign(
    owner: object,
    address: int,
    shape: object,
    dtype: object,
    *,
    strides: object = None,
    size_bytes: int,
    device: Device | str,
) -> Tensor:
    """A tensor on memory that another library owns; `owner` is kept alive while anything uses it.

    Its order with our work is kept from now on; with the owner's own work it is the caller's (see `foreign`).

    Args:
        address: of the first element. strides: in elements, >= 0; row-major without.
        size_bytes: how much memory the owner has at `address`.
    Raises:
        ValueError: a negative stride, an address that is not aligned or that no memory can have, or an extent beyond
            `size_bytes`.
    """
    address, size_bytes = operator.index(address), operator.index(size_bytes)
    if size_bytes < 0 or address < 0 or (size_bytes and not address) or address + size_bytes > 1 << 64:
        raise ValueError(f"no memory can be of {size_bytes} bytes at address {address:#x}")
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
    found = ForeignArray(address, dims, steps, kind, False, owner)
    return _tensor_on(found, _device(device), size_bytes=size_bytes)


def from_dlpack(array: object, *, device: Device | str | None = None) -> Tensor:
    """A tensor on the memory of another library's array (NumPy, torch, CuPy, JAX, ...), without a copy.

    The array's memory is kept alive while anything uses it. On a CUDA device our work on it comes behind what the
    producer had enqueued; what either side enqueues later is not ordered with the other's work by itself: run theirs
    with `foreign`, or exchange the array anew. Memory of the host is used by the simulated device; bring it to a CUDA
    device with `from_host`. The first use of a device opens it, which is slow.

    Args:
        array: has `__dlpack__` and `__dlpack_device__`; NumPy arrays of `ml_dtypes` types work too.
        device: where it must be; without it, where it is (`host:0` or the current one for memory of the host).
    Raises:
        TypeError: no such array, a masked one, or an element type that is not supported; the message says what it is.
        ContextError: it is elsewhere. BufferError: misaligned, the producer refuses, or what it hands over is on
            another device than it says.
    """
    wanted = None if device is None else _device(device)
    if isinstance(array, Tensor):
        if wanted is not None and wanted is not array.device:
            raise ContextError(f"the tensor is on {array.device}, not on {wanted}; copy it through the host")
        array._buffer.check_usable()
        return array[...]
    if type(array) is np.ndarray:
        _check_host(wanted)
        return _tensor_on_host(numpy_array(array), wanted)
    refuse_masked(array, "from_dlpack()")
    if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
        raise TypeError(
            f"from_dlpack() takes an array with __dlpack__ and __dlpack_device__, got {type(array).__name__}"
            + (instead_of_a_value(array) or "; copy other host data with from_host()")
        )
    where = as_dlpack_device(
        array.__dlpack_device__(), f"{type(array).__name__}.__dlpack_device__() returned"
    )
    kind, number = where
    if kind in (CPU, CUDA_PINNED):
        _check_host(wanted)
        return _tensor_on_host(import_capsule(request_capsule(array, None), where), wanted)
    if kind not in (CUDA, CUDA_MANAGED):
        raise ContextError(
            f"the array is on a device of DLPack's type {kind}; expected the CPU (1) or a CUDA device (2): "
            "move it there with its own library first"
        )
    place = wanted or Device(f"cuda:{number}")
    if place.kind != "cuda" or place.ordinal != number:
        raise ContextError(f"the array is on cuda:{number}, not on {place}; move it there first")
    stream = checked_open(place)._exchange_stream()
    return _tensor_on(import_capsule(request_capsule(array, int(stream.handle)), where), place, stream)


def from_cuda_array_interface(array: object, *, device: Device | str | None = None) -> Tensor:
    """A tensor on the memory of an array with `__cuda_array_interface__`, without a copy. Prefer `from_dlpack`.

    Our work on it comes behind what the stream holds that the interface names; where it names none, that the contents
    are ready is the caller's business. Later work on either side is not ordered, as with `from_dlpack`.

    Args:
        device: the CUDA device it must be on; without it, the one it is on.
    Raises:
        TypeError: no such array, or an element type that is not supported. BufferError: masked, or misaligned.
        ContextError: it is on another device, or on none.
    """
    wanted = None if device is None else _device(device)
    found, producer = parse_cuda_array_interface(array)
    place = wanted or default_device_if_known()
    if place is None or (wanted is None and place.kind != "cuda"):
        place = Device("cuda:0")
    driver = foreign_calls(checked_open(place))
    if found.address:
        number = driver.pointer_device(found.address)
        if wanted is None:
            place = checked_open(Device(f"cuda:{number}"))
        elif number != wanted.ordinal:
            raise ContextError(f"the array is on cuda:{number}, not on {wanted}; move it there first")
    stream = None
    if producer is not None:
        stream = place._exchange_stream()
        wait_for_producer(place, stream, producer)
    return _tensor_on(found, place, stream)


def _check_host(wanted: Device | None) -> None:
    if wanted is not None and wanted.kind != "host":
        raise ContextError(
            f"the array is in the host's memory, which {wanted} cannot use; copy it over with from_host()"
        )


def _tensor_on_host(found: ForeignArray, wanted: Device | None) -> Tensor:
    """On `wanted`; else where the memory came from, if that is a simulated device; else on the current one."""
    if wanted is None:
        wanted = next(
            (d for d in all_open_devices() if d.kind == "host" and _memory(d).contains(found.address)),
            default_device_if_known(),
        )
        if wanted is None or wanted.kind != "host":
            wanted = Device("host:0")
    return _tensor_on(found, checked_open(wanted))


def _tensor_on(
    found: ForeignArray, device: Device, stream: Stream | None = None, *, size_bytes: int | None = None
) -> Tensor:
    """A tensor on checked foreign memory. `stream` waits for the producer's work by now."""
    low, high = extent(found.shape, found.strides)
    itemsize = found.dtype.itemsize
    start = found.address + low * itemsize
    size = (high - low) * itemsize if size_bytes is None else size_bytes
    owner = _Borrowing(found.owner)
    if size and device.kind == "host":
        owner.register(_memory(device), start, size, writable=not found.read_only)
    buffer = Buffer(device, start, size, Usage(), notes=device._notes, owner=owner, read_only=found.read_only)
    adopt(device, buffer, stream)
    return Tensor._make(buffer, found.address, found.dtype, found.shape, found.strides)


def _device(device: object) -> Device:
    """A device, or the one of that name."""
    if not isinstance(device, (Device, str)):
        raise TypeError(f'a device is a Device or its name, such as "host:0", got {type(device).__name__}')
    return Device(device) if isinstance(device, str) else device


def _memory(device: Device) -> HostMemory:
    memory: HostMemory = device.driver.memory  # type: ignore[attr-defined]  # the host driver has one
    return memory


class _Borrowing:
    """The owner of borrowed memory, which the simulated device may touch for as long as this lives."""

    _memory: HostMemory | None = None

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def register(self, memory: HostMemory, address: int, size_bytes: int, *, writable: bool) -> None:
        self._range = memory.add_foreign(address, size_bytes, self._owner, writable=writable)
        self._memory = memory

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # When a process ends, a free-threaded Python may call this after the names of modules are gone.
        if self._memory is not None and not is_ending():
            self._memory.remove_foreign(self._range)


class Foreign(DeviceOp[tuple[Tensor, ...]]):
    """`foreign(fn, reads=, writes=)`."""

    def __init__(
        self, fn: Callable[[Stream], object], reads: tuple[Tensor, ...], writes: tuple[Tensor, ...]
    ) -> None:
        self._fn = fn
        self._reads = reads
        self._writes = writes

    def _device_hint(self) -> Device | None:
        return next((t.device for t in (*self._reads, *self._writes)), None)

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return ctx.device.kind == "host" and ctx.device not in _host_call._loaded

    def prepare(self, ctx: ExecutionContext) -> None:
        _host_call.load(ctx.device)

    def execute(self, ctx: ExecutionContext) -> tuple[Tensor, ...]:
        for tensor in (*self._reads, *self._writes):
            check_operand(tensor, ctx.device, "a tensor of a foreign call")
        if ctx.device.kind == "host":
            call = _HostCall(self._fn, ctx.stream)
            ctx.retain(call)  # first: an interrupt may come behind the driver's call
            _host_call.enqueue(
                ctx, (1, 1, 1), (1, 1, 1), (call.number,), reads=self._reads, writes=self._writes
            )
        else:
            ctx.stream._check_open()
            for tensor in self._reads:
                ctx.read(tensor)
            for tensor in self._writes:
                ctx.write(tensor)
            _call(self._fn, ctx.stream)
        return (*self._reads, *self._writes)


FOREIGN_CALL = "ca.foreign"
"""What the host device calls the kernel that calls a function; no other kernel is called so."""


def _call(fn: Callable[[Stream], object], stream: Stream) -> None:
    result = fn(stream)
    if isinstance(result, NEVER_RUN) or (isinstance(result, DeviceOp) and not result._consumed):
        if isinstance(result, CoroutineType):
            result.close()  # or Python warns of it too
        raise TypeError(
            f"{_name(fn)}, which was given to foreign(), returned a {type(result).__name__}, which would never run: "
            "foreign() is for another library's work, which the function enqueues itself"
        )


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or repr(fn))


NEVER_RUN = (CoroutineType, GeneratorType, AsyncGeneratorType)


class _HostCall:
    """A call that waits for its turn on the simulated device; what retains it keeps it."""

    def __init__(self, fn: Callable[[Stream], object], stream: Stream) -> None:
        self.fn = fn
        self.stream = stream
        self.number = next(_numbers)
        _host_calls[self.number] = self


_numbers = itertools.count(1)
_host_calls: weakref.WeakValueDictionary[int, _HostCall] = weakref.WeakValueDictionary()


class _HostCaller(HostFunction):
    """The kernel that makes the calls: one for all, since a device keeps its modules."""

    @property
    def info(self) -> FunctionInfo:
        number = ParameterInfo(name="number", offset_bytes=0, size_bytes=8, alignment_bytes=8)
        return FunctionInfo(name=FOREIGN_CALL, parameters=(number,), max_threads_per_block=1)

    def start(self, launch: HostLaunch) -> Iterator[None]:
        call = _host_calls[int.from_bytes(launch.arguments[:8], "little")]
        with as_callback():
            try:
                _call(call.fn, call.stream)
            except CudaAsyncError as error:  # of what the function did; as any other exception of its
                from ..driver.host import failed_work

                raise failed_work(FOREIGN_CALL, error) from error
        return
        yield


_host_call = Module.from_host_image(
    HostImage(functions={FOREIGN_CALL: _HostCaller()}, name="foreign calls")
).function(FOREIGN_CALL)


def foreign(
    fn: Callable[[Stream], object], *, reads: Sequence[Tensor] = (), writes: Sequence[Tensor] = ()
) -> DeviceOp[tuple[Tensor, ...]]:
    """Run another library's work in the order of ours: `fn(stream)` enqueues it on `stream`.

    On a CUDA device `fn` is called while enqueueing and must put its work on the stream it is given (which has
    `__cuda_stream__` and `.handle`), while no other thread enqueues a use of the tensors or frees them; on the host
    device it is called in the stream's order, on the engine's thread.

    Either way `fn` runs none of our operations itself. On the host device it waits for none of the device's work, and
    gets at the tensors by arrays that were made before: `np.from_dlpack(t)` is a `BufferError` while `t` is written.

    Yields the tensors of `reads`, then of `writes`.
    """
    if not callable(fn):
        raise TypeError(f"foreign() takes a function of a stream, got {type(fn).__name__}")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"{_name(fn)} is an async function, and foreign() calls it while enqueueing")
    if inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{_name(fn)} has a yield in it, so foreign(), which calls it while enqueueing, would run nothing"
        )
    for name, given in (("reads", reads), ("writes", writes)):
        if isinstance(given, (Tensor, DeviceOp)) or not isinstance(given, Iterable):
            raise TypeError(f"foreign() takes {name}=[...], a list of tensors, got {type(given).__name__}")
    reads, writes = tuple(reads), tuple(writes)  # an iterator would be used up by the first look
    for tensor in (*reads, *writes):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"foreign() reads and writes tensors, got {type(tensor).__name__}{instead_of_a_value(tensor)}"
            )
    return Foreign(fn, reads, writes)
