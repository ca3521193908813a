"""Shared operations: run once, used by many; and the components of a tuple as operations of their own.

A gate holds the source. The first consumer, on whatever thread, task, loop or stream, starts it, on its own stream, as
a detached execution: it belongs to nobody, so a consumer that is cancelled takes nothing with it. Others that come
meanwhile wait until everything is enqueued, not until the device is done; then every consumer gets the same value, or
the same exception, and a consumer on another stream makes its stream wait for the source's.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConsumedError, CudaAsyncError
from ..scheduling import wait_for_callback
from ._execution import Execution, run_detached
from ._op import DeviceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scheduling import Device, Stream

__all__ = ["SharedOp", "shared", "unzip"]

T = TypeVar("T")


class Gate:
    """The one run of a shared source."""

    def __init__(self, source: DeviceOp[Any] | None) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.settled = source is None
        self.value: Any = None
        self.error: BaseException | None = None
        self.stream: Stream | None = None
        self.number = 0
        self._waiting: list[Callable[[], None]] = []

    def enter(self, execution: Execution, frame: Any) -> bool:
        """Start the source if nobody has; True when settled, else the execution is blocked on it."""
        with self.lock:
            source, self.source = self.source, None
        if source is not None:
            inner = Execution(source, stream=execution.ctx.stream)

            def finished(error: BaseException | None) -> None:
                self._settle(inner, error)

            run_detached(inner, finished)
        if self.settled:
            return True
        execution.frames.append(frame)
        execution.block = GateWait(self)
        return False

    def _settle(self, inner: Execution, error: BaseException | None) -> None:
        if error is None and inner.enqueued:
            stream = inner.ctx.stream
            with stream.device._lock:
                self.stream = stream
                self.number = stream._next if stream._dirty else stream._next - 1
        with self.lock:
            self.value = inner.value
            self.error = error
            self.settled = True
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def deliver(self, execution: Execution) -> Any:
        """The value, ordered behind the source on the consumer's stream; or the source's exception."""
        if self.error is not None:
            raise self.error
        stream = self.stream
        if stream is not None:
            ctx = execution.ctx
            if stream.device is ctx.device:
                ctx.driver.bind()
                with ctx.device._lock:
                    ctx.stream._wait_for(stream, self.number)
            execution.enqueued = True
            if not execution.host_pending:
                from ._execution import _holds_arrays

                execution.host_pending = _holds_arrays(self.value)
        return self.value

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once settled; returns how to give up."""
        with self.lock:
            waits = not self.settled
            if waits:
                self._waiting.append(wake)
        if not waits:
            wake()

        def give_up() -> None:
            with self.lock:
                if wake in self._waiting:
                    self._waiting.remove(wake)

        return give_up


class GateWait:
    """Another consumer's run of the source is not through yet."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._gate.begin(wake)

    def run_blocking(self) -> None:
        ready = threading.Event()
        self._gate.begin(ready.set)
        ready.wait()

    async def wait(self) -> None:
        await wait_for_callback(self._gate.begin)

    def raise_error(self) -> None:
        """The gate's error comes out where its value would have."""


class SharedOp(DeviceOp[T]):
    """An operation that runs once, however often it is used, awaited or composed. Made by `.shared()`."""

    _composite = True
    _gate: Gate
    _hint: Device | None
    _count: int | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("shared operations are made by DeviceOp.shared() or shared(value)")

    @classmethod
    def _of(cls, source: DeviceOp[T]) -> SharedOp[T]:
        self = object.__new__(cls)
        self._gate = Gate(source)
        self._hint = source._device_hint()
        self._count = source._arity()
        return self

    @classmethod
    def _done(cls, value: T) -> SharedOp[T]:
        self = object.__new__(cls)
        self._gate = Gate(None)
        self._gate.value = value
        self._hint = None
        self._count = len(value) if isinstance(value, tuple) else None
        return self

    def _take(self) -> SharedOp[T]:
        return self

    def shared(self) -> SharedOp[T]:
        """Itself."""
        return self

    def _device_hint(self) -> Device | None:
        stream = self._gate.stream
        return stream.device if stream is not None else self._hint

    def _arity(self) -> int | None:
        return self._count

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if self._gate.enter(execution, self):
            execution.value = self._gate.deliver(execution)
        return None

    def _resume(self, execution: Execution, value: Any) -> None:
        execution.value = self._gate.deliver(execution)

    def unwrap_shared(self) -> DeviceOp[T]:
        """An operation that takes the value out for good, as its sole owner.

        Raises (when it runs):
            ConsumedError: other references to this shared operation or to its value exist.
        """
        return _Unwrap(self)


def shared(value: T) -> SharedOp[T]:
    """A value that exists already, as a shared operation."""
    return SharedOp._done(value)


class _Unwrap(DeviceOp[T]):
    """`shared_op.unwrap_shared()`."""

    _composite = True

    def __init__(self, shared_op: SharedOp[T]) -> None:
        self._shared: SharedOp[T] | None = shared_op

    def _device_hint(self) -> Device | None:
        return self._shared._device_hint() if self._shared is not None else None

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        execution.frames.append(self)
        return self._shared

    def _resume(self, execution: Execution, value: Any) -> None:
        shared_op, self._shared = self._shared, None
        assert shared_op is not None
        gate = shared_op._gate
        # Referrers of the shared op here: the local and getrefcount's argument.
        others = sys.getrefcount(shared_op) - 2
        if others > 0:
            raise ConsumedError(
                f"unwrap_shared() needs the only reference to the shared operation, but there are {others} more; "
                "drop them first"
            )
        gate.value = None
        gate.error = ConsumedError("the value of this shared operation was taken by unwrap_shared()")
        execution.value = value


class _Component(DeviceOp[Any]):
    """One component of an unzipped operation."""

    _composite = True

    def __init__(self, gate: Gate, index: int, hint: Device | None) -> None:
        self._gate = gate
        self._index = index
        self._hint = hint

    def _device_hint(self) -> Device | None:
        return self._hint

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if self._gate.enter(execution, self):
            execution.value = self._gate.deliver(execution)[self._index]
        return None

    def _resume(self, execution: Execution, value: Any) -> None:
        execution.value = self._gate.deliver(execution)[self._index]


def unzip(op: DeviceOp[Any], count: int | None) -> tuple[DeviceOp[Any], ...]:
    """The operations behind `op.unzip()`."""
    known = op._arity()
    if known is None and count is None:
        raise CudaAsyncError(
            f"unzip() cannot know how many components {type(op).__name__} yields before it runs; say unzip(count)"
        )
    if known is not None and count is not None and known != count:
        raise ValueError(f"unzip({count}) of an operation that yields {known} components")
    gate = Gate(op._take())
    hint = op._device_hint()
    return tuple(_Component(gate, i, hint) for i in range(known if known is not None else count or 0))
