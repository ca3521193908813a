"""What is made ready as a CUDA device is opened: that takes hundreds of milliseconds anyway, and is off the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["behind_opening", "call_behind_opening"]

behind_opening: list[Callable[[], object]] = []
"""Called on the thread that has opened a device."""


def call_behind_opening(get_ready: Callable[[], object]) -> None:
    """Have `get_ready` called behind each opening of a CUDA device, on the thread that opens it.

    For what a first launch would else wait for.
    """
    behind_opening.append(get_ready)
