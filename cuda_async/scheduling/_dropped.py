"""Events and graphs of the driver's that nobody has any more. Finalizers, which may run anywhere, only note them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._device import Device

__all__ = ["destroy_dropped"]


def destroy_dropped(device: Device) -> None:
    """Device's lock held, context bound. What is noted stays the first until it is gone, as an interrupt may come."""
    driver = device.driver
    kinds: list[tuple[Callable[[Any], None], Any]] = [
        (driver.event_destroy, device._dropped_events),
        (driver.graph_destroy, device._dropped_graphs),
    ]
    for destroy, dropped in kinds:
        while dropped:
            with contextlib.suppress(DriverError):  # it is gone: the interrupt came behind that
                destroy(dropped[0])
            del dropped[0]
