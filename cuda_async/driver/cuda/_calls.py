"""Calling the CUDA driver: results, errors, handles, and what becomes of a device that cannot go on.

`cuda.bindings` answers every call with a tuple whose first item is the result code, an `int` subclass that
is false for success, so the test on the hot path is one truth test.

Handles. Above this layer a handle is a plain `int`, the driver's pointer. `cuda.bindings` wants its own
objects (`CUstream` and so on): it takes an int too, but builds such an object from it in every call, which
costs 50 to 100 ns per handle (a launch: 0.10 us of 0.36 us in Python, measured with a driver that does
nothing). The tables below keep the object made at creation; a lookup costs 15 ns, and a handle that was
closed is found missing instead of being passed on as a dangling pointer.

Losing the device. After a fault the driver answers every call on the context with the same code. To say so
at once, and to cost the hot path nothing, an unusable driver changes its class: `UnusableDriver` has the same
methods and each of them raises the reason. A method that a caller had bound before still calls the driver,
gets the sticky code and raises the same error.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ...errors import ContextError, DeviceLostError, DriverError
from ._bindings import FORKED
from ._errors import STICKY, driver_error, unknown_handle

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DriverCalls", "HandleTable"]


class HandleTable(dict[int, Any]):
    """The binding's object for each live handle of one sort."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def __missing__(self, handle: int) -> NoReturn:
        raise unknown_handle(self._what, handle)


_events = HandleTable("event")
"""Events of all devices: a stream may wait for an event of another."""


class DriverCalls:
    """What every part of the CUDA driver needs: the bindings, the context, the tables, and errors."""

    kind = "cuda"
    notifies = False
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
        self._cuCtxSetCurrent = api.cuCtxSetCurrent
        self._streams = HandleTable("stream")
        self._events = _events
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
        code = self._cuCtxSetCurrent(self._context)[0]
        if code:
            self._fail("cuCtxSetCurrent", code)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver in this context; the value it answers (a tuple where there are several).

        Raises:
            DriverError, DeviceLostError: it failed.
        """
        code = self._cuCtxSetCurrent(self._context)[0]
        if code:
            self._fail("cuCtxSetCurrent", code)
        code, *values = getattr(self._api, name)(*arguments)
        if code:
            self._fail(name, code)
        return values[0] if len(values) == 1 else tuple(values)

    def _fail(self, call: str, code: Any) -> NoReturn:
        """Raise what a failed call means."""
        if os.getpid() != self._process:
            raise ContextError(FORKED)
        if self._reason is not None:  # closed, or lost, by another thread meanwhile
            raise self._reason()
        error = driver_error(self._api, call, code)
        if error.code in STICKY:
            self._lose(error)
        raise error

    def _lose(self, cause: DriverError) -> NoReturn:
        """The device is lost: remember the first cause, refuse everything from now on, and say so."""
        with self._state_lock:
            if self._cause is None:
                self._cause = cause
        self._become_unusable(self._lost_error)
        raise self._lost_error()

    def _lost_error(self) -> DeviceLostError:
        error = DeviceLostError(f"{self.label}: {self._cause}")
        error.__cause__ = self._cause
        return error

    def _become_unusable(self, reason: Callable[[], Exception]) -> None:
        """From now on every method raises what `reason` makes. The first reason stays."""
        with self._state_lock:
            if self._reason is None:
                self._reason = reason
                self.__class__ = self.unusable_class
