"""The host devices of this process: one driver per ordinal, opened on first use."""

from __future__ import annotations

from ...errors import ContextError
from ._driver import HostDriver
from ._fork import Level, fork_safe_lock
from ._settings import host_device_count

__all__ = ["open_host_driver"]

_lock = fork_safe_lock(Level.REGISTRY)
_open: dict[int, HostDriver] = {}


def open_host_driver(ordinal: int = 0) -> HostDriver:
    """The driver of host device `ordinal`: the same one each time, a new one after it was closed.

    Raises:
        ContextError: there is no such device, or its memory cannot be had.
    """
    count = host_device_count()
    if not 0 <= ordinal < count:
        raise ContextError(
            f"there is no host device {ordinal}: there {'is' if count == 1 else 'are'} {count}, numbered from 0; "
            "CUDA_ASYNC_HOST_DEVICES sets how many"
        )
    with _lock:
        driver = _open.get(ordinal)
        if driver is None or driver.is_closed:
            driver = _open[ordinal] = HostDriver(ordinal)
        return driver
