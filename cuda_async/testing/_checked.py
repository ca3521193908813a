"""A host device that looks for races and misuse of memory, and what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver.host import HostDriver
from ..driver.host.check import CheckReport, process_checker
from ..errors import ContextError
from ..scheduling import Device
from ..scheduling._findings import free_dropped

if TYPE_CHECKING:
    from ..driver import Driver

__all__ = ["check_reports", "checked_device"]


def checked_device(*, collect: bool = False, memory_bytes: int = 64 << 20) -> Device:
    """A host device of the test's own that checks what runs on it, as `CUDA_ASYNC_HOST_CHECK=1` does for all of them.

    Make it current with `use_device(device)`.

    Args:
        collect: only collect what is found, for `check_reports`; otherwise work that has findings fails with a
            `CheckError`, and what awaits it raises that.
        memory_bytes: size of its memory.
    """
    driver: Driver = HostDriver(memory_bytes=memory_bytes, check="collect" if collect else "raise")
    return Device._make("host", 0, driver)


def check_reports(leaks_of: Device | None = None) -> list[CheckReport]:
    """What was found since the last call, on all checked devices of the process.

    Args:
        leaks_of: also report, as leaks, what is still allocated on this device once all that was dropped is freed. It
            waits for the device.
    Raises:
        ContextError: that device does not check. TypeError: it is none.
    """
    if leaks_of is not None:
        if not isinstance(leaks_of, Device):
            raise TypeError(f"leaks_of is a Device, got {leaks_of!r}")
        driver = leaks_of.driver
        if not isinstance(driver, HostDriver) or driver.checker is None:
            raise ContextError(
                f"{leaks_of} does not check what runs on it; use checked_device(), or CUDA_ASYNC_HOST_CHECK=1"
            )
        leaks_of.synchronize()
        free_dropped(leaks_of)
        driver.leaks()
    return process_checker().take_reports()
