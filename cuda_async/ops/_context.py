"""`ExecutionContext`: what an operation sees while it enqueues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..errors import ContextError
from ..memory import Tensor, as_dtype, as_shape, contiguous_strides
from ..memory._hints import instead_of_a_value
from ..scheduling import order_enqueued, order_read, order_write

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..driver import Driver
    from ..memory import Buffer, ShapeLike
    from ..scheduling import Device, Stream

__all__ = ["ExecutionContext", "check_operand", "context_on"]


def check_operand(tensor: object, device: Device, what: str) -> Buffer:
    """The buffer of `tensor`, which must be live and on `device`.

    Raises:
        TypeError: no tensor. ContextError: another device. ClosedError: freed.
    """
    if not isinstance(tensor, Tensor):
        hint = "; bring it over with from_host()" if hasattr(tensor, "__array__") else "; pass a Tensor"
        hint = instead_of_a_value(tensor) or hint
        raise TypeError(f"{what} is a {type(tensor).__name__}, expected a tensor on {device}{hint}")
    buffer = tensor._buffer
    if buffer.device is not device:
        buffer.device._check_not_closed()
        raise ContextError(
            f"{what} is on {buffer.device}, but this runs on {device}; "
            f'run it with use_device("{buffer.device}"), or copy the tensor over through the host'
        )
    if buffer.address < 0:
        buffer.check_usable()
    return buffer


class ExecutionContext:
    """The device and stream of a running operation. Handed to `execute`, `prepare` and callbacks.

    Attributes:
        device: where it runs. stream: what to enqueue on.
    """

    # What the operation asked for, until it has enqueued (`_settle`): buffers, and whether it writes them; what it
    # retains; and the number of the stream that all of it is noted in, 0 for nothing. Another thread's use in between
    # that conflicts with one of these closes that number.
    __slots__ = ("_driver", "_noted_in", "_retained", "_touched", "device", "stream")

    def __init__(self, device: Device, stream: Stream) -> None:
        self.device = device
        self.stream = stream
        self._driver: Driver = device.driver
        self._touched: dict[Buffer, bool] = {}
        self._retained: list[object] = []
        self._noted_in = 0

    @property
    def driver(self) -> Driver:
        """The device's driver. What its calls enqueue is ordered together with them by what was asked for before."""
        return cast("Driver", _OrderedCalls(self))

    def read(self, tensor: Tensor) -> int:
        """The address of `tensor`'s first element, for work that is enqueued next and only reads it.

        Waits, on the device, for the last write. Call it in `execute`, before enqueueing.
        """
        buffer = check_operand(tensor, self.device, "an operand to read")
        with self.device._lock:
            self.device._order(self.stream, [buffer], [])
            self._touched.setdefault(buffer, False)
            self._note()
        return tensor._address

    def write(self, tensor: Tensor) -> int:
        """The address of `tensor`'s first element, for work that is enqueued next and writes (or also reads) it.

        Waits, on the device, for every earlier use on other streams.
        """
        buffer = check_operand(tensor, self.device, "an operand to write")
        with self.device._lock:
            self.device._order(self.stream, [], [buffer])
            self._touched[buffer] = True
            self._note()
        return tensor._address

    def empty(self, shape: ShapeLike, dtype: object) -> Tensor:
        """New memory, contents undefined, in this stream's order.

        Raises:
            OutOfMemoryError: nothing was enqueued.
        """
        dims = as_shape(shape)
        return self._empty(dims, as_dtype(dtype))

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        size = dtype.itemsize
        for n in shape:
            size *= n
        buffer = self.device._allocate(size, self.stream)
        return Tensor._make(buffer, buffer.address, dtype, shape, contiguous_strides(shape))

    def retain(self, thing: object) -> None:
        """Keep `thing` alive until the device has passed what is enqueued so far, and by this operation after it."""
        with self.device._lock:
            self.stream._retained.append(thing)
            self.stream._dirty = True
            self._retained.append(thing)
            self._note()

    def _note(self) -> None:
        """Lock held."""
        if not self._noted_in:
            self._noted_in = self.stream._next

    def _order_again(self) -> None:
        """Lock held: what is enqueued next uses all that was asked for. Others may have used or freed it meanwhile."""
        stream = self.stream
        was_closed = stream._next != self._noted_in
        if was_closed:
            stream._retained += self._retained
        for buffer, is_write in self._touched.items():
            if was_closed or buffer.plain_on is not self.device:
                (order_write if is_write else order_read)(stream, buffer)
        stream._dirty = True
        self._noted_in = stream._next if self._noted_in else 0

    def _settle(self) -> None:
        """After user code enqueued: its work is in the number that is open now, at the latest.

        Another thread may have closed the one that was open when it asked. What follows is behind both.
        """
        stream = self.stream
        try:
            with self.device._lock:
                if stream._next != self._noted_in and not stream._closed:
                    for buffer, is_write in self._touched.items():
                        order_enqueued(stream, buffer, is_write=is_write)
                    stream._retained += self._retained
                    stream._dirty = True
        finally:
            self._noted_in = 0
            self._touched.clear()
            self._retained = []


ENQUEUE = frozenset(
    [
        "convert_async",
        "copy_device_to_device_async",
        "copy_device_to_host_async",
        "copy_host_to_device_async",
        "copy_strided_async",
        "fill_async",
        "graph_launch",
        "launch",
        "launch_with_attributes",
    ]
)
"""Calls of the driver that use memory."""


class _OrderedCalls:
    """A driver as operations of one's own call it: without the lock."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: ExecutionContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:  # what the driver has
        ctx = self._ctx
        call = getattr(ctx._driver, name)
        if name == "bind_launch":
            return lambda *args, **options: self._ordered(call(*args, **options))
        return self._ordered(call) if name in ENQUEUE else call

    def _ordered(self, call: Callable[..., object]) -> Callable[..., object]:
        ctx = self._ctx

        def ordered(*args: object, **options: object) -> object:
            with ctx.device._lock:
                ctx._order_again()
                return call(*args, **options)

        return ordered


def context_on(stream: Stream) -> ExecutionContext:
    """The context for operations on `stream`."""
    if stream._recorder is not None:
        recorded: ExecutionContext = stream._recorder.context(stream)
        return recorded
    return ExecutionContext(stream.device, stream)
