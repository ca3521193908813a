"""For tests of programs that use this package: a host device that advances only when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .driver.host import HostDriver
from .scheduling import Device

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["stepped_device"]


def stepped_device(*, memory_bytes: int = 64 << 20) -> tuple[Device, HostDriver]:
    """A host device of the test's own, and the controls that advance it.

    Make it current with `use_device(device)`. Nothing enqueued on it runs until `controls.advance()`, one entry at a
    time, or `controls.advance_all()`; `controls.fail_next(call, error)` lets a driver call fail, `controls.freed` lists
    freed addresses, and `controls.wait_enqueued(stream.handle)` waits for another thread's or task's work.
    Blocking calls (`sync()`) need another thread to advance.

    Args:
        memory_bytes: size of its memory.
    """
    controls = HostDriver(stepped=True, memory_bytes=memory_bytes)
    driver: Driver = controls
    return Device._make("host", 0, driver), controls
