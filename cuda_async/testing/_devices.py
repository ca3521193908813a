"""Host devices of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver.host import HostDriver, SeededEngine, SeededOrder
from ..scheduling import Device

if TYPE_CHECKING:
    from ..driver import Driver

__all__ = ["seeded_device", "stepped_device"]


def stepped_device(*, memory_bytes: int = 64 << 20) -> tuple[Device, HostDriver]:
    """A host device of the test's own, and the controls that advance it.

    Make it current with `use_device(device)`. Nothing enqueued on it runs until `controls.advance()`, one entry at a
    time, or `controls.advance_all()`; `controls.fail_next(call, error)` lets a driver call fail,
    `controls.fail_device(error)` the device; `controls.freed` lists freed addresses, and
    `controls.wait_enqueued(stream.handle)` waits for another thread's or task's work.
    Blocking calls (`sync()`) need another thread to advance.

    Args:
        memory_bytes: size of its memory.
    """
    controls = HostDriver(stepped=True, memory_bytes=memory_bytes)
    driver: Driver = controls
    return Device._make("host", 0, driver), controls


def seeded_device(seed: int, *, memory_bytes: int = 64 << 20) -> tuple[Device, SeededOrder]:
    """A host device of the test's own on which a seed decides who goes on, and its decisions so far.

    Make it current with `use_device(device)`. The same seed gives the same order of everything as long as one thread
    uses it, on asyncio or uvloop; `format_trace(order.trace)` shows it. Freed memory is filled with 0xDD. Slow host
    work (first uses, conversions) runs on worker threads, whose timing is nobody's; `explore` decides about it too.

    Args:
        memory_bytes: size of its memory.
    """
    order = SeededOrder(seed)
    driver: Driver = HostDriver(engine=SeededEngine(order), memory_bytes=memory_bytes, poison=True)
    return Device._make("host", 0, driver), order
