"""`ExecutionContext`: what an operation sees while it enqueues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ContextError
from ..memory import Tensor, as_dtype, as_shape, contiguous_strides
from ..memory._hints import instead_of_a_value

if TYPE_CHECKING:
    from ..driver import Driver
    from ..memory import Buffer
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

    __slots__ = ("_touched", "device", "driver", "stream")

    def __init__(self, device: Device, stream: Stream) -> None:
        self.device = device
        self.stream = stream
        self.driver: Driver = device.driver
        self._touched: list[tuple[Buffer, bool]] = []

    def read(self, tensor: Tensor) -> int:
        """The address of `tensor`'s first element, for work that is enqueued next and only reads it.

        Waits, on the device, for the last write. Call it in `execute`, before enqueueing.
        """
        buffer = check_operand(tensor, self.device, "an operand to read")
        with self.device._lock:
            self.device._order(self.stream, [buffer], [])
        self._touched.append((buffer, False))
        return tensor._address

    def write(self, tensor: Tensor) -> int:
        """The address of `tensor`'s first element, for work that is enqueued next and writes (or also reads) it.

        Waits, on the device, for every earlier use on other streams.
        """
        buffer = check_operand(tensor, self.device, "an operand to write")
        with self.device._lock:
            self.device._order(self.stream, [], [buffer])
        self._touched.append((buffer, True))
        return tensor._address

    def empty(self, shape: object, dtype: object) -> Tensor:
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
        """Keep `thing` alive until the device has passed what is enqueued so far."""
        with self.device._lock:
            self.stream._retained.append(thing)
            self.stream._dirty = True

    def _settle(self) -> None:
        """After user code enqueued: its work belongs to the number that is open now.

        Another thread may have closed the number that was open when the address was asked for.
        """
        stream = self.stream
        with self.device._lock:
            number = stream._next
            for buffer, is_write in self._touched:
                usage = buffer.usage
                if is_write:
                    if usage.write_stream is stream and usage.write_number < number:
                        usage.write_number = number
                else:
                    usage.add_read(stream, number)
        self._touched.clear()


def context_on(stream: Stream) -> ExecutionContext:
    """The context for operations on `stream`."""
    if stream._recorder is not None:
        recorded: ExecutionContext = stream._recorder.context(stream)
        return recorded
    return ExecutionContext(stream.device, stream)
