"""What the checking mode of the host device found, at the end of the process."""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..driver.host import HostDriver
    from ._device import Device

__all__ = ["find_leaks", "free_dropped", "print_at_exit"]

LOOK_S = 0.5
"""How long memory that seems to be left is looked for again."""


def free_dropped(device: Device) -> None:
    """Free what was dropped, cycles too: errors that were caught may hold memory so. The device is done with its work.

    Its threads may still be in frames that hold such an error, so where something is left, this looks again.
    """
    until = time.monotonic() + LOOK_S
    while True:
        gc.collect()
        device.collect(everything=True)
        if not device.memory_stats().used_bytes or time.monotonic() > until:
            return
        time.sleep(5e-3)


def find_leaks(device: Device, driver: HostDriver) -> list[str]:
    """Wait for the device, free what was dropped, and say what of its memory is left."""
    with contextlib.suppress(Exception):  # errors of work that nobody awaited
        device.synchronize()
    free_dropped(device)
    return [str(report) for report in driver.leaks()]


def print_at_exit(device: Device, driver: HostDriver) -> None:
    """When the process ends, print findings that were only collected, and leaks."""

    def print_all() -> None:
        if driver.is_closed or driver.checker is None or not device.is_healthy:
            return
        found = [] if driver.check_raises else [str(report) for report in driver.checker.reports]
        found += find_leaks(device, driver)
        if found:
            print("CUDA_ASYNC_HOST_CHECK found:", *found, sep="\n", file=sys.stderr)

    atexit.register(print_all)
