"""Every exception this package raises, under one base.

A class exists where a caller would act differently; facts are attributes. Messages say what went
wrong, what was given and what to do, in that order.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AliasError",
    "CaptureError",
    "CheckError",
    "ClosedError",
    "CompileError",
    "ConsumedError",
    "ContextError",
    "CudaAsyncError",
    "DeviceLostError",
    "DriverError",
    "KernelError",
    "LaunchError",
    "MemoryFault",
    "NotFilledYetError",
    "OperationCancelledError",
    "OutOfMemoryError",
    "ReentrancyError",
    "SchedulingError",
    "StaleOutputError",
    "StillReferredError",
]


class CudaAsyncError(Exception):
    """Base of all errors of `cuda_async` and `tilekern`.

    Copies, and what `pickle` brings to another process, have the text, the facts and the notes; as of any exception,
    no traceback and no cause.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, self._facts())

    def _facts(self) -> dict[str, Any]:
        facts = dict(vars(self))
        notes = facts.get("__notes__")
        if isinstance(notes, list):  # of its own
            facts["__notes__"] = [*notes]
        return facts


def _made_again(kind: type[CudaAsyncError], args: tuple[Any, ...], facts: dict[str, Any]) -> CudaAsyncError:
    """Whatever the class is made with."""
    try:  # `kind.__new__` may be that of a later base, which refuses
        error = BaseException.__new__(kind, *args)
    except TypeError:  # a class of the caller's
        error = kind.__new__(kind, *args)
        error.args = args
    error.__dict__.update(facts)
    return error


class DriverError(CudaAsyncError):
    """A driver call failed; keeps the call, the code's name and its meaning."""

    def __init__(self, call: str, code: int, code_name: str, meaning: str, hint: str = "") -> None:
        self.call = call
        self.code = code
        self.code_name = code_name
        self.meaning = meaning
        text = f"{call}: {code_name} ({code}): {meaning}"
        super().__init__(f"{text}; {hint}" if hint else text)


class OutOfMemoryError(CudaAsyncError, MemoryError):
    """An allocation did not fit, after cached memory was given back.

    Attributes:
        requested_bytes: the size asked for.
        used_bytes: bytes live in the pool at that moment.
        limit_bytes: the pool's limit, or the device's memory where the pool has none.
    """

    def __init__(self, message: str, requested_bytes: int, used_bytes: int, limit_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes
        super().__init__(message)


class DeviceLostError(CudaAsyncError):
    """The device cannot run anything more in this process; the cause is chained.

    Attributes:
        kernels: names of the kernels that were in flight when the fault was seen, the likeliest first.
    """

    # Whose device it was. Where one device's work looks at another's, only that one is lost.
    _driver: Callable[[], object] | None = None

    def __init__(self, message: str, kernels: tuple[str, ...] = ()) -> None:
        self.kernels = kernels
        super().__init__(message)

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts()
        facts.pop("_driver", None)
        return facts

    def _said_by(self, driver: object) -> DeviceLostError:
        """This error, as that driver's."""
        self._driver = weakref.ref(driver)
        return self


class ContextError(CudaAsyncError):
    """A device or driver is missing, unusable here, or not the one an operand lives on."""


class CompileError(CudaAsyncError):
    """Source, PTX, cubin or tile code was refused.

    Attributes:
        log: what the compiler, assembler or driver printed; empty where it printed nothing.
    """

    def __init__(self, message: str, log: str = "") -> None:
        self.log = log
        super().__init__(message)


class SchedulingError(CudaAsyncError):
    """No stream could be chosen, or a policy answered with one of another device."""


class LaunchError(CudaAsyncError, ValueError):
    """A launch asked for what the kernel or the device cannot do; nothing was enqueued."""


class KernelError(CudaAsyncError):
    """A kernel failed while it ran, on a device that survives that (the host device); the cause is chained.

    Attributes:
        kernel: the kernel's name.
    """

    def __init__(self, message: str, kernel: str = "") -> None:
        self.kernel = kernel
        super().__init__(message)


class MemoryFault(CudaAsyncError):
    """Work on the host device touched an address it may not touch.

    A CUDA device is lost after such an access (`DeviceLostError`); the host device goes on.

    Attributes:
        address: the first address at fault.
        size_bytes: how many bytes the access wanted there.
        access: `"read"` or `"write"`.
        reason: why it is not allowed: out of bounds, freed, misaligned, null, ...
        kernel: the kernel that did it; empty for copies and fills.
        index: position of the fault in the (flattened) array of addresses accessed at once: for a kernel
            this tells the thread. `None` where one range was accessed.
    """

    def __init__(
        self, address: int, size_bytes: int, access: str, reason: str, *, index: int | None = None
    ) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.access = access
        self.reason = reason
        self.index = index
        self.kernel = ""
        super().__init__(f"{access} of {size_bytes} bytes at {address:#x}: {reason}")

    def __str__(self) -> str:
        text = super().__str__()
        return f"kernel {self.kernel}: {text}" if self.kernel else text


class CheckError(CudaAsyncError):
    """The checking mode of the host device found a race or a misuse of memory in work that has run to its end.

    Attributes:
        reports: the findings, each a `cuda_async.testing.CheckReport`.
    """

    def __init__(self, message: str, reports: tuple[Any, ...] = ()) -> None:
        self.reports = reports
        super().__init__(message)


class CaptureError(CudaAsyncError):
    """An operation cannot be part of a graph capture, or the capture became invalid."""


class StaleOutputError(CudaAsyncError):
    """An output of a graph was used before its launch, or after the next: it does not hold that launch's result."""


class NotFilledYetError(StaleOutputError):
    """What was used is to be filled by a graph that is being recorded, or was not launched: who comes later is served.

    So nobody takes it for the outcome of a shared operation that builds on that.
    """


class AliasError(CudaAsyncError, ValueError):
    """One launch was given the same memory exclusively and once more."""


class ConsumedError(CudaAsyncError, RuntimeError):
    """An operation was used a second time; `.shared()` gives one that can be."""


class StillReferredError(ConsumedError):
    """`unwrap_shared()` found other references, which may go: it is no outcome of a shared operation around it."""


class OperationCancelledError(CudaAsyncError):
    """A `DeviceFuture` was cancelled, or a shared operation's run interrupted, before everything was enqueued: there is
    no result."""


class ReentrancyError(CudaAsyncError, RuntimeError):
    """`sync`, `await` or `start` was called inside a callback that may only enqueue."""


class ClosedError(CudaAsyncError, RuntimeError):
    """A closed stream, event, module, tensor or device was used."""
