"""Which device and which policy are current, in a task or thread; the inner of `use_device` and `use_policy` counts."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from . import _device
from ._device import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from ._policies import SchedulingPolicy

__all__ = [
    "check_policy",
    "current_device",
    "default_device_if_known",
    "policy_in_force",
    "use_device",
    "use_policy",
]

P = TypeVar("P", bound="SchedulingPolicy")
T = TypeVar("T")

_current: ContextVar[Device | None] = ContextVar("cuda_async_device", default=None)
_current_policy: ContextVar[SchedulingPolicy | None] = ContextVar("cuda_async_policy", default=None)


def default_device_if_known() -> Device | None:
    """The current device, unless finding the default one would be slow."""
    return _current.get() or _device._default


def current_device() -> Device:
    """The device that operations run on: of `use_device`, else the default one."""
    return _current.get() or _device.resolve_default_device()


def policy_in_force() -> SchedulingPolicy | None:
    """The policy of `use_policy`; None where the device's own chooses."""
    return _current_policy.get()


class _Once(contextlib.AbstractContextManager[T], contextlib.ContextDecorator):
    """What `make` makes, for one `with` (or, as a decorator, one for each call)."""

    def __init__(self, name: str, make: Callable[[], contextlib.AbstractContextManager[T]]) -> None:
        self._name = name
        self._make = make
        self._made: contextlib.AbstractContextManager[T] | None = None

    def _recreate_cm(self) -> _Once[T]:
        return _Once(self._name, self._make)

    def __enter__(self) -> T:
        if self._made is not None:
            raise RuntimeError(
                f"what {self._name}() gives is for one `with`, and was used already; call {self._name}() for each"
            )
        self._made = self._make()
        return self._made.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._made is None:
            raise RuntimeError(f"what {self._name}() gives was not entered; write `with {self._name}(...):`")
        return self._made.__exit__(kind, error, traceback)


def use_device(device: Device | str) -> contextlib.AbstractContextManager[Device]:
    """Make `device` current in this task or thread, inside `with`.

    Its own policy chooses the streams there: a `use_policy` outside is set aside, one inside counts.
    """
    chosen = Device(device) if isinstance(device, str) else device
    if not isinstance(chosen, Device):
        raise TypeError(f'a device is a Device or a name such as "cuda:0", got {device!r}')
    return _Once("use_device", lambda: _use_device(chosen))


@contextlib.contextmanager
def _use_device(device: Device) -> Iterator[Device]:
    before, policy = _current.get(), _current_policy.get()
    try:  # an interrupt may come as soon as it is set
        _current.set(device)
        _current_policy.set(None)
        yield device
    finally:
        _current.set(before)
        _current_policy.set(policy)


def check_policy(policy: object) -> None:
    """Raises `TypeError` for what cannot choose streams."""
    if isinstance(policy, type) or not callable(getattr(policy, "next_stream", None)):
        raise TypeError(
            f"a scheduling policy is an object with a method next_stream(), got {policy!r}; "
            "SingleStream(stream) is one for a stream"
        )


def use_policy(policy: P) -> contextlib.AbstractContextManager[P]:
    """Let `policy` choose streams in this task or thread, inside `with`, and so the device too."""
    check_policy(policy)
    return _Once("use_policy", lambda: _use_policy(policy))


@contextlib.contextmanager
def _use_policy(policy: P) -> Iterator[P]:
    before = _current_policy.get()
    try:
        _current_policy.set(policy)
        yield policy
    finally:
        _current_policy.set(before)
