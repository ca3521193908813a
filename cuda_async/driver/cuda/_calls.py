"""Calling the CUDA driver: results, errors, handles, and what becomes of a device that cannot go on.

`cuda.bindings` answers every call with a tuple whose first item is the result code, an `int` subclass that
is false for success, so the test on the hot path is one truth test.

Handles. Above this layer a handle is a plain `int`, the driver's pointer. `cuda.bindings` wants its own
objects (`CUstream` and so on): it takes an int too, but builds such an object from it in every call. The tables
below keep the object made at creation, and a handle that was closed is found missing instead of being passed on
as a dangling pointer.

Entry points. The few calls that every operation makes go to the driver's own function by ctypes, with pointers
that are kept in the same tables: 0.12 to 0.2 us of Python each, where the bindings take 0.35 to 0.4, of which
they make an enum of the result (measured with a driver that does nothing).

Losing the device. After a fault the driver answers every call on the context with the same code. To say so
at once, and to cost the hot path nothing, an unusable driver changes its class: `UnusableDriver` has the same
methods and each of them raises the reason. A method that a caller had bound before still calls the driver,
gets the sticky code and raises the same error.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ...errors import ContextError, DeviceLostError, DriverError, OutOfMemoryError
from ._bindings import FORKED
from ._errors import OUT_OF_MEMORY, STICKY, describe_code, driver_error, unknown_handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._protocol import EventHandle

__all__ = ["DriverCalls", "HandleTable", "entry_point", "pointer"]


ENTRY_POINTS_OF = 12000
"""The version of CUDA whose functions are looked up; the newest of them, `cuLaunchKernelEx`, came with 11.8."""
LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM = 1, 2  # CUdriverProcAddress_flags


def entry_point(api: Any, name: str) -> Any:
    """The driver's own function, called with `pointer(...)` and ints; gives the `CUresult` as an int.

    Python's other threads run meanwhile.

    Raises:
        ContextError: the driver does not have it.
    """
    # Where the environment tells the bindings that the default stream is a thread's own, it is so here.
    own = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0")
    flags = PER_THREAD_DEFAULT_STREAM if own else LEGACY_DEFAULT_STREAM
    code, address, *_ = api.cuGetProcAddress(name.encode(), ENTRY_POINTS_OF, flags)
    if code or not address:
        raise ContextError(f"the NVIDIA driver has no {name}: {describe_code(api, code)}; update the driver")
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)


def pointer(address: int) -> Any:
    """What ctypes passes as a pointer in the fewest steps."""
    return ctypes.byref(ctypes.c_char.from_address(address)) if address else None


class _Live(dict[int, Any]):
    """Something for each live handle of one sort."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def __missing__(self, handle: int) -> NoReturn:
        raise unknown_handle(self._what, handle)


class HandleTable(_Live):
    """The binding's object for each live handle of one sort; `pointers` has what entry points take."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.pointers = _Live(what)

    def __setitem__(self, handle: int, native: Any) -> None:
        self.pointers[handle] = pointer(handle)
        super().__setitem__(handle, native)

    def __delitem__(self, handle: int) -> None:
        super().__delitem__(handle)
        del self.pointers[handle]


_events = HandleTable("event")
"""Events of all devices: a stream may wait for an event of another."""


class DriverCalls:
    """What every part of the CUDA driver needs: the bindings, the context, the tables, and errors."""

    kind = "cuda"
    notifies = False
    hands_failures_on = False
    unusable_class: ClassVar[type[DriverCalls]]
    """What an instance turns into when it cannot be used any more."""

    def __init__(self, api: Any, ordinal: int, context: Any) -> None:
        """
        Args:
            api: the module `cuda.bindings.driver` (it has no type information).
            ordinal: the device's number.
            context: the `CUcontext` that every call runs in; it stays the caller's.
        """
        self.ordinal = ordinal
        self._api = api
        self._context = context
        self._process = os.getpid()
        self._state_lock = threading.Lock()
        self._cause: DriverError | None = None
        self._reason: Callable[[], Exception] | None = None
        self._set_current = functools.partial(entry_point(api, "cuCtxSetCurrent"), pointer(int(context)))
        self._streams = HandleTable("stream")
        self._events = _events
        self._interrupting: set[EventHandle] = set()
        self._modules = HandleTable("module")
        self._functions = HandleTable("kernel")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"

    @property
    def label(self) -> str:
        """`cuda:0`, for messages."""
        return f"cuda:{self.ordinal}"

    @property
    def is_usable(self) -> bool:
        """False once the device is lost, the driver closed or the process forked."""
        return self._reason is None

    def bind(self) -> None:
        """Make the context current on this thread: always, because other libraries change it too."""
        code = self._set_current()
        if code:
            self._fail("cuCtxSetCurrent", code)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver in this context; the value it answers (a tuple where there are several).

        What finds no memory is called once more when the pool's cached memory was given back.

        Raises:
            DriverError, DeviceLostError, OutOfMemoryError: it failed.
        """
        code = self._set_current()
        if code:
            self._fail("cuCtxSetCurrent", code)
        function = getattr(self._api, name)
        code, *values = function(*arguments)
        if code and int(code) == OUT_OF_MEMORY and self._make_room():
            code, *values = function(*arguments)
        if code:
            self._fail(name, code)
        return values[0] if len(values) == 1 else tuple(values)

    def _fail(self, call: str, code: Any) -> NoReturn:
        """Raise what a failed call means."""
        if os.getpid() != self._process:
            raise ContextError(FORKED)
        if self._reason is not None:  # closed, or lost, by another thread meanwhile
            raise self._reason()
        if type(code) is int:  # from an entry point
            with contextlib.suppress(ValueError):  # a newer driver's, which the bindings do not know
                code = self._api.CUresult(code)
        if int(code) == OUT_OF_MEMORY:
            self._make_room()  # for who tries again
            raise self._out_of_memory(call)
        error = driver_error(self._api, call, code)
        if error.code in STICKY:
            self._lose(error)
        raise error

    def _make_room(self) -> bool:
        """Give cached memory back to the system; False where there is no pool yet."""
        return False

    def _out_of_memory(self, call: str, size_bytes: int = 0) -> OutOfMemoryError:
        """The error of a call for which the device's memory did not suffice; `size_bytes` where it asks for some."""
        error = driver_error(self._api, call, OUT_OF_MEMORY)
        return OutOfMemoryError(f"{self.label}: {error}", size_bytes, 0, 0)

    def _lose(self, cause: DriverError) -> NoReturn:
        """The device is lost: remember the first cause, refuse everything from now on, and say so."""
        with self._state_lock:
            if self._cause is None:
                self._cause = cause
        self._become_unusable(self._lost_error)
        raise self._lost_error()

    def _lost_error(self) -> DeviceLostError:
        error = DeviceLostError(f"{self.label}: {self._cause}")._said_by(self)
        error.__cause__ = self._cause
        return error

    def _become_unusable(self, reason: Callable[[], Exception]) -> None:
        """From now on every method raises what `reason` makes. The first reason stays."""
        with self._state_lock:
            if self._reason is None:
                self._reason = reason
                self.__class__ = self.unusable_class
